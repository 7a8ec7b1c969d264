"""Pre-LN in the format of Hugging Face's Llama: the same function, other names.

Both pair channel i of a head with i + e/2 in the rotation, so no weight is permuted.
"""

from typing import Any

from depthbench.model.config import ModelConfig

FORMAT = "llama"
HEAD = {"embed.": "model.embed_tokens.", "norm.": "model.norm.", "lm_head.": "lm_head."}
BLOCK = {
    "attn.wq.": "self_attn.q_proj.",
    "attn.wk.": "self_attn.k_proj.",
    "attn.wv.": "self_attn.v_proj.",
    "attn.wo.": "self_attn.o_proj.",
    "ffn.w_gate.": "mlp.gate_proj.",
    "ffn.w_up.": "mlp.up_proj.",
    "ffn.w_down.": "mlp.down_proj.",
    "attn_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
}


def theirs(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict of Pre-LN under Llama's names."""
    return {_renamed(name, HEAD, BLOCK, "blocks.", "model.layers."): value for name, value in state.items()}


def ours(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict of Llama under our names."""
    head, block = ({new: old for old, new in table.items()} for table in (HEAD, BLOCK))
    return {_renamed(name, head, block, "model.layers.", "blocks."): value for name, value in state.items()}


def config(cfg: ModelConfig, positions: int, eos: int, pad: int, dtype: str) -> dict[str, Any]:
    """Return the config.json of a Llama with the shape of `cfg`, for texts of at most `positions` tokens."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": cfg.vocab_size,
        "hidden_size": cfg.d_model,
        "intermediate_size": cfg.d_ff,
        "num_hidden_layers": cfg.n_layers,
        "num_attention_heads": cfg.n_heads,
        "num_key_value_heads": cfg.n_kv_heads,
        "head_dim": cfg.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": cfg.norm_eps,
        # the first name is that of version 5 of the library, the second that of version 4
        "rope_parameters": {"rope_type": "default", "rope_theta": cfg.rope_theta},
        "rope_theta": cfg.rope_theta,
        "max_position_embeddings": positions,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def _renamed(name: str, head: dict[str, str], block: dict[str, str], old: str, new: str) -> str:
    if not name.startswith(old):
        return _replaced(name, head)
    index, _, rest = name.removeprefix(old).partition(".")
    return f"{new}{index}.{_replaced(rest, block)}"


def _replaced(name: str, table: dict[str, str]) -> str:
    (start,) = (start for start in table if name.startswith(start))
    return table[start] + name.removeprefix(start)

"""`config.json` of a released checkpoint as a `ModelConfig`; what lies outside our designs is refused.

The file is a dump of OLMo-core's dataclasses: what is absent has their default.
"""

from collections.abc import Iterator
from typing import Any

from depthbench.errors import UserError
from depthbench.model.config import ModelConfig

DESIGNS = {
    "default": "preln",
    "peri_norm": "sandwich",
    "default_scaled": "lns",
    "deepnorm": "deepnorm",
    "keel": "keel",
    "hc": "hc",
    "mhc": "mhc",
    "attnres": "attnres",
    "attn_res": "attnres",
    "moda": "moda",
    "post_norm_moda": "moda_postln",
}
IMPORTED = (
    *("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc"),
    *("attnres_full", "attnres_block", "moda", "moda_postln"),
)
# Keys that change the function of a model, anywhere in `model`, with the values that leave it one of ours.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("embedding_norm", "qk_norm", "gate", "window_size", "sliding_window", "clip_qkv"), (None,)),
    **dict.fromkeys(("scaling", "attention_scale", "block_pattern", "feed_forward_moe"), (None,)),
    **dict.fromkeys(("tie_word_embeddings", "bias", "no_global_rope", "scalable_softmax"), (None, False)),
    **dict.fromkeys(("attention_sinks", "attnres_use_bias", "attnres_learn_logit_scale"), (None, False)),
    **dict.fromkeys(("embed_scale", "partial_rotary_factor"), (None, 1)),
    **dict.fromkeys(("attention_residual_alpha", "feed_forward_residual_alpha"), (None, 1)),
    "dropout": (None, 0),
    "activation": (None, "silu"),
    "attnres_topk_fraction": (None,),
    "tanh": (None, True),
    "collapse": (None, "sum"),
    "liger_pre_eps": (None, 0),
    "liger_post_mult": (None, 2),
}
ATTNRES_EPS, HC_RMS_EPS = 1e-5, 1e-8  # constants of their code
THEIR_THETA = 500_000


def model_config(about: dict[str, Any]) -> ModelConfig:
    """Return the model of a `config.json`; its `hc_readout` is the default, since the file does not tell.

    Raises:
        UserError: E-VARIANT with key and value, E-CKPT for a key that is missing or of another type, E-CONFIG.
    """
    try:
        model, block = about["model"], about["model"]["block"]
        mixer = block["sequence_mixer" if "sequence_mixer" in block else "attention"]
        for path, key, value in _walk(model, "model"):
            if key in NEUTRAL and value not in NEUTRAL[key]:
                raise _variant(path, value)
        design = _design(block)
        _check_overrides(model, block, design)
        rope = mixer.get("rope")
        if not rope or rope.get("name", "default") != "default":
            raise _variant("model.block.sequence_mixer.rope", rope)
        return ModelConfig(
            **{key: model[key] for key in ("d_model", "n_layers", "vocab_size")},
            n_heads=mixer["n_heads"],
            n_kv_heads=mixer.get("n_kv_heads"),
            head_dim=mixer.get("head_dim"),
            rope_theta=float(rope.get("theta", THEIR_THETA)),
            d_ff=block["feed_forward"]["hidden_size"],
            norm_eps=_eps(model, design),
            **_own(block, design),
        )
    except UserError:
        raise
    except KeyError as error:
        raise UserError("E-CKPT", f"config.json: no key {error.args[0]!r}; download it again") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise UserError("E-CKPT", f"config.json: not that of a checkpoint ({error}); download it again") from None


def _walk(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    """Yield path, last key and value of all that a mapping holds; what a block overrides is checked elsewhere."""
    for key, inner in value.items():
        yield f"{path}.{key}", key, inner
        if isinstance(inner, dict) and key != "block_overrides":
            yield from _walk(inner, f"{path}.{key}")


def _variant(path: str, value: Any) -> UserError:
    return UserError(
        "E-VARIANT", f"{path}: {value!r:.80} lies outside the designs that are read: {', '.join(IMPORTED)}"
    )


def _design(block: dict[str, Any]) -> str:
    name, kind = block.get("name", "default"), (block.get("hyper_connections") or {}).get("kind")
    if name not in DESIGNS:
        raise _variant("model.block.name", name)
    design = DESIGNS[name]
    if kind is not None or design == "mhc":  # an older file calls the block `default`
        found = {"hc": "hc", "liger_mhc": "mhc"}.get(str(kind))
        if found is None or design not in ("preln", found):
            raise _variant("model.block.hyper_connections.kind", kind)
        return found
    size = block.get("attnres_block_size")
    if design == "attnres" or (design == "preln" and size is not None):
        if type(size) is not int or size < 1:
            raise _variant("model.block.attnres_block_size", size)
        return "attnres_full" if size == 1 else "attnres_block"
    return design


def _check_overrides(model: dict[str, Any], block: dict[str, Any], design: str) -> None:
    """The last block of MoDA may leave out its depth projection, as ours does."""
    overrides = model.get("block_overrides") or {}
    last = {str(model["n_layers"] - 1): {**block, "moda_skip_ffn_kv": True}}
    if overrides and not (design.startswith("moda") and {str(k): v for k, v in overrides.items()} == last):
        raise _variant("model.block_overrides", overrides)


def _eps(model: dict[str, Any], design: str) -> float:
    """Return the eps of all norms, once their kinds are those of the design."""
    inner, head = model["block"]["layer_norm"], model["lm_head"]["layer_norm"]
    kinds = {"block": (inner, "default" if design == "deepnorm" else "rms"), "lm_head": (head, "rms")}
    for where, (norm, kind) in kinds.items():
        if norm["name"] != kind:
            raise _variant(f"model.{where}.layer_norm.name", norm["name"])
    if inner["eps"] != head["eps"]:
        raise _variant("model.lm_head.layer_norm.eps", head["eps"])
    return float(inner["eps"])


def _own(block: dict[str, Any], design: str) -> dict[str, Any]:
    """Return the keys of some designs only."""
    connections = block.get("hyper_connections") or {}
    found: dict[str, Any] = {"design": design}
    if design in ("hc", "mhc"):
        found["n_streams"] = connections.get("num_residual_streams", 4)
    if design == "hc":
        found["hc_rms_eps"] = HC_RMS_EPS
    if design == "mhc":
        names = {"mhc_rms_eps": "liger_rms_eps", "sinkhorn_eps": "liger_sinkhorn_eps"}
        found |= {ours: float(connections.get(theirs, 1e-6)) for ours, theirs in names.items()}
        found["sinkhorn_iters"] = connections.get("sinkhorn_iters", 20)
    if design.startswith("attnres"):
        found["attnres_eps"] = ATTNRES_EPS
    if design == "attnres_block":
        found["attnres_block_size"] = block["attnres_block_size"]
    return found

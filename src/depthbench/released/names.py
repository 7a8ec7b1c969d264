"""The names of a released checkpoint's tensors, as ours; nothing is transposed, fused or permuted.

Only the queries of AttnRes have another shape there, (1, d). What is dropped: the second names of the sub-layers that
connectors of HC and mHC hold, once they are found equal to the bit; `ln_scale` of LNS, once it is 1 / sqrt(l + 1);
the depth projection of MoDA's last block, which nothing reads.
"""

import re

import torch
from torch import Tensor

from depthbench.errors import UserError
from depthbench.model.backbone import Model
from depthbench.model.config import ModelConfig

HEAD = {
    "embed": "embeddings",
    "norm": "lm_head.norm",
    "lm_head": "lm_head.w_out",
    "final_res.query": "res_proj.weight",
    "final_res.key_norm": "res_norm",
}
BLOCK = {
    **{f"attn.w{one}": f"attention.w_{theirs}" for one, theirs in zip("qkvo", ("q", "k", "v", "out"), strict=True)},
    **{"ffn.w_gate": "feed_forward.w1", "ffn.w_up": "feed_forward.w3", "ffn.w_down": "feed_forward.w2"},
    **{"attn_norm": "attention_norm", "ffn_norm": "feed_forward_norm"},
    **{"attn_post_norm": "post_attention_norm", "ffn_post_norm": "post_feed_forward_norm"},
    **{"attn_hc": "attention_hyper_connection", "ffn_hc": "feed_forward_hyper_connection"},
    **{"attn_mhc": "attention_hyper_connection", "ffn_mhc": "feed_forward_hyper_connection"},
    **{"attn_mhc.bias": "attention_hyper_connection.b", "ffn_mhc.bias": "feed_forward_hyper_connection.b"},
    **{"attn_res.query": "attn_res_proj.weight", "attn_res.key_norm": "attn_res_norm"},
    **{"ffn_res.query": "mlp_res_proj.weight", "ffn_res.key_norm": "mlp_res_norm"},
    "ffn.w_kv": "feed_forward.kv_proj",
}
POST_NORM = {"attn_post_norm": "attention_norm", "ffn_post_norm": "feed_forward_norm"}
WRAPPED = {
    **{
        name: theirs.replace("attention.", "attention.attention.") for name, theirs in BLOCK.items() if "attn.w" in name
    },
    **{
        name: theirs.replace("feed_forward.", "feed_forward.feed_forward.")
        for name, theirs in BLOCK.items()
        if name in ("ffn.w_gate", "ffn.w_up", "ffn.w_down")
    },
}
CHANGED = {"deepnorm": POST_NORM, "moda": WRAPPED, "moda_postln": WRAPPED | POST_NORM}
SECOND = re.compile(
    r"(blocks\.\d+\.)(attention|feed_forward)_hyper_connection\.branch\.(norm|attention|feed_forward)\."
)
NAMED = 5  # names of a message


def theirs(name: str, design: str) -> str:
    """Return the name of one of our tensors in a released checkpoint."""
    where, table = re.match(r"blocks\.\d+\.|", name), HEAD
    prefix = where[0] if where else ""
    if prefix:
        table = BLOCK | CHANGED.get(design, {})
    parts = name.removeprefix(prefix).split(".")
    for n in range(len(parts), 0, -1):
        if found := table.get(".".join(parts[:n])):
            return ".".join([prefix + found, *parts[n:]])
    raise AssertionError(name)


def ours(stored: dict[str, Tensor], cfg: ModelConfig) -> dict[str, Tensor]:
    """Return the state dict of `cfg` from the tensors of a checkpoint, in their stored types.

    Raises:
        UserError: E-KEYS for names that are missing or too many, or a second name with other values; E-SHAPE;
            E-VARIANT for another scale than that of LNS.
    """
    left = dict(stored)
    _drop_second_names(left, cfg)
    _drop_scale(left, cfg)
    if cfg.design.startswith("moda"):
        _drop_last_projection(left, cfg)
    with torch.device("meta"):
        wanted = Model(cfg).state_dict()
    names = {name: theirs(name, cfg.design) for name in wanted}
    _check_names(set(left), set(names.values()), cfg)
    found = {}
    for name, tensor in wanted.items():
        stored_tensor, shape = left[names[name]], tuple(tensor.shape)
        if name.endswith("_res.query"):
            shape = (1, *shape)
        if tuple(stored_tensor.shape) != shape:
            raise UserError(
                "E-SHAPE",
                f"{names[name]}: {tuple(stored_tensor.shape)}, by config.json {shape}; "
                "weights and config.json are not of one model: download both again",
            )
        found[name] = stored_tensor.reshape(tensor.shape)
    return found


def _drop_second_names(left: dict[str, Tensor], cfg: ModelConfig) -> None:
    if cfg.design not in ("hc", "mhc"):
        return
    for name in [*left]:
        match = SECOND.match(name)
        if not match:
            continue
        block, side, part = match.groups()
        first = f"{block}{side + '_norm' if part == 'norm' else part}.{name[match.end() :]}"
        if first in left and not _same_bits(left.pop(name), left[first]):
            raise UserError("E-KEYS", f"{name}: differs from {first}, of which it is a copy; download it again")


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _drop_scale(left: dict[str, Tensor], cfg: ModelConfig) -> None:
    """LNS once saved its factor as a buffer, which their initialisation could leave as uninitialised memory."""
    names = [f"blocks.{l}.ln_scale" for l in range(cfg.n_layers)]
    if cfg.design != "lns" or not set(names) & set(left):
        return
    found = [float(left.pop(name)) if name in left and left[name].numel() == 1 else float("nan") for name in names]
    if all(abs(value - (l + 1) ** -0.5) <= 1e-6 for l, value in enumerate(found)):
        return
    fixed = all(abs(value - cfg.n_layers**-0.5) <= 1e-6 for value in found)
    values = "1 / sqrt(L) in every block" if fixed else ", ".join(f"{value:.4g}" for value in found)
    raise UserError("E-VARIANT", f"blocks.*.ln_scale: {values}, LNS has 1 / sqrt(l + 1); this run did not train LNS")


def _drop_last_projection(left: dict[str, Tensor], cfg: ModelConfig) -> None:
    name = theirs(f"blocks.{cfg.n_layers - 1}.ffn.w_kv.weight", cfg.design)
    if left.pop(name, None) is not None:
        print(f"{name}: left out, nothing reads the depth projection of the last block", flush=True)


def _check_names(found: set[str], wanted: set[str], cfg: ModelConfig) -> None:
    if found == wanted:
        return
    parts = []
    for what, names in (("unexpected", found - wanted), ("missing", wanted - found)):
        if names:
            shown = ", ".join(sorted(names)[:NAMED]) + ", ..." * (len(names) > NAMED)
            parts.append(f"{len(names)} {what}: {shown}")
    raise UserError("E-KEYS", f"{cfg.design}: {len(found)} tensors, expected {len(wanted)}; {'; '.join(parts)}")

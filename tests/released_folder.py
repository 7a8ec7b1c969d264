"""Folders as the authors' code writes them, from models of ours: names, second names, types and config.json.

`python tests/released_folder.py OUT.tar.xz` makes the committed fixture with OLMo-core's own saver, which it needs;
`python tests/released_folder.py RUN OUT` writes a run of ours that way, with PyTorch's.
"""

import copy
import json
import re
import sys
import tarfile
import tempfile
import warnings
import zlib
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import depthbench
from depthbench.model import ModelConfig, build_model
from depthbench.model.backbone import store_bfloat16

FIXTURE = Path(__file__).parent / "fixtures" / "released.tar.xz"
DESIGNS = (
    *("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc"),
    *("attnres_full", "attnres_block", "moda", "moda_postln"),
)
BLOCKS = {
    **{"preln": "default", "sandwich": "peri_norm", "lns": "default_scaled", "deepnorm": "deepnorm", "keel": "keel"},
    **{"hc": "hc", "mhc": "mhc", "attnres_full": "attnres", "attnres_block": "attnres"},
    **{"moda": "moda", "moda_postln": "post_norm_moda"},
}
WRAP = ("moda", "moda_postln")
NAMES = [
    (r"^embed\.", "embeddings."),
    (r"^norm\.", "lm_head.norm."),
    (r"^lm_head\.weight", "lm_head.w_out.weight"),
    (r"^final_res\.query", "res_proj.weight"),
    (r"^final_res\.key_norm", "res_norm"),
    (r"\.attn\.w([qkv])\.", r".attention.w_\1."),
    (r"\.attn\.wo\.", ".attention.w_out."),
    (r"\.ffn\.w_gate\.", ".feed_forward.w1."),
    (r"\.ffn\.w_down\.", ".feed_forward.w2."),
    (r"\.ffn\.w_up\.", ".feed_forward.w3."),
    (r"\.ffn\.w_kv\.", ".feed_forward.kv_proj."),
    (r"\.attn_norm\.", ".attention_norm."),
    (r"\.ffn_norm\.", ".feed_forward_norm."),
    (r"\.attn_post_norm\.", ".post_attention_norm."),
    (r"\.ffn_post_norm\.", ".post_feed_forward_norm."),
    (r"\.attn_m?hc\.", ".attention_hyper_connection."),
    (r"\.ffn_m?hc\.", ".feed_forward_hyper_connection."),
    (r"_hyper_connection\.bias", "_hyper_connection.b"),
    (r"\.attn_res\.query", ".attn_res_proj.weight"),
    (r"\.attn_res\.key_norm", ".attn_res_norm"),
    (r"\.ffn_res\.query", ".mlp_res_proj.weight"),
    (r"\.ffn_res\.key_norm", ".mlp_res_norm"),
]


def small(design, **changes):
    """Grouped heads, three blocks, so that first, middle and last differ; the constants of the authors' code."""
    own = {"hc": {"hc_rms_eps": 1e-8}}.get(design, {})
    own = {"attnres_eps": 1e-5} if design.startswith("attnres") else own
    own |= {"attnres_block_size": 1 if design == "attnres_full" else 2} if design.startswith("attnres") else {}
    keys = {"d_model": 8, "n_layers": 3, "n_heads": 2, "n_kv_heads": 1, "d_ff": 16, "vocab_size": 18}
    return ModelConfig(design, **(keys | own | changes))


def filled(cfg, bfloat16=True):
    """A model whose parameters follow from their names alone, so that a fixture need not hold what is expected."""
    model = build_model(cfg).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            numbers = torch.arange(parameter.numel()) * 7919 + zlib.crc32(name.encode()) % 65521
            values = ((numbers % 1021) / 1021.0 - 0.5).reshape(parameter.shape)
            parameter.copy_(values + 1.0 if "norm" in name else values)
    if bfloat16:
        store_bfloat16(model)
    return model


def their_names(model):
    """The tensors of a model under their names, second names of HC and mHC included."""
    design, found = model.cfg.design, {}
    for name, tensor in model.state_dict().items():
        new = name
        for pattern, words in NAMES:
            new = re.sub(pattern, words, new)
        if design in ("deepnorm", "moda_postln"):
            new = new.replace("post_attention_norm", "attention_norm").replace("post_feed_forward", "feed_forward")
        if design in WRAP and "kv_proj" not in new:
            new = re.sub(r"\.(attention|feed_forward)\.", r".\1.\1.", new)
        found[new] = tensor[None] if name.endswith("_res.query") else tensor
    if design in ("hc", "mhc"):
        for name, tensor in list(found.items()):
            if match := re.fullmatch(r"(blocks\.\d+\.)(attention|feed_forward)(_norm)?\.(.*)", name):
                block, side, norm, rest = match.groups()
                found[f"{block}{side}_hyper_connection.branch.{'norm' if norm else side}.{rest}"] = tensor
    return found


def their_config(cfg):
    """The part of config.json that describes the model, as OLMo-core dumps it."""
    norm = {"name": "rms", "eps": cfg.norm_eps, "bias": False, "dtype": "bfloat16"}
    block = {
        "name": BLOCKS[cfg.design],
        "sequence_mixer": {
            **{"name": "default", "n_heads": cfg.n_heads, "n_kv_heads": cfg.n_kv_heads, "bias": False},
            "rope": {"name": "default", "theta": int(cfg.rope_theta), "full_precision": True, "no_global_rope": False},
            **{"dtype": "bfloat16", "type": "attention"},
        },
        "layer_norm": {**norm, "name": "default" if cfg.design == "deepnorm" else "rms"},
        "feed_forward": {"hidden_size": cfg.d_ff, "name": "default", "bias": False, "activation": "silu"},
    }
    connections = {"kind": "liger_mhc" if cfg.design == "mhc" else "hc", "num_residual_streams": cfg.n_streams}
    if cfg.design == "mhc":
        connections |= {"liger_rms_eps": cfg.mhc_rms_eps, "sinkhorn_iters": cfg.sinkhorn_iters, "liger_pre_eps": 0.0}
        connections |= {"liger_sinkhorn_eps": cfg.sinkhorn_eps, "liger_post_mult": 2.0}
    if cfg.design in ("hc", "mhc"):
        block["hyper_connections"] = connections
    if cfg.design.startswith("attnres"):
        block["attnres_block_size"] = 1 if cfg.design == "attnres_full" else cfg.attnres_block_size
    model = {key: asdict(cfg)[key] for key in ("d_model", "n_layers", "vocab_size")}
    model |= {"block": block, "lm_head": {"name": "default", "layer_norm": norm, "bias": False}, "init_seed": 0}
    if cfg.design in WRAP:
        model["block_overrides"] = {str(cfg.n_layers - 1): {**copy.deepcopy(block), "moda_skip_ffn_kv": True}}
    tokenizer = {"vocab_size": cfg.vocab_size, "eos_token_id": cfg.vocab_size - 1, "pad_token_id": 1}
    return {"model": model, "dataset": {"tokenizer": {**tokenizer, "identifier": "/their/cluster"}}, "init_seed": 0}


def save(folder, state):
    """PyTorch's own saver; a step of the optimizer stands in for its state, which is not read."""
    moments = {"step": torch.tensor(3.0)}
    with warnings.catch_warnings(action="ignore"):  # of a single process
        dcp.save({"model": state, "optim": {"state": moments}}, checkpoint_id=folder, no_dist=True)


def write(folder, model, saver=save, config=None, state=None):
    """Write a checkpoint; `config` and `state` stand in for what belongs to the model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or their_config(model.cfg)))
    saver(folder / "model_and_optim", their_names(model) if state is None else state)
    return folder


def olmo_core_save(folder, state):
    """OLMo-core's own saver."""
    from olmo_core.distributed.checkpoint import save_state_dict

    save_state_dict(folder, {"model": state})


def save_sharded(rank, folder, port):
    """One of two processes that shard Pre-LN as FSDP2 does and save it with OLMo-core."""
    from olmo_core.distributed.checkpoint import save_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = filled(small("preln"))
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    save_state_dict(folder, {"model": their_names(model)})
    torch.distributed.destroy_process_group()


def sharded(folder):
    """Write a checkpoint of two processes."""
    import socket

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(their_config(small("preln"))))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(save_sharded, (str(folder / "model_and_optim"), port), nprocs=2)
    return folder


def main(out):
    """Write the committed fixture."""
    with tempfile.TemporaryDirectory() as made:
        for design in DESIGNS:
            write(Path(made) / design, filled(small(design)), olmo_core_save)
        sharded(Path(made) / "preln_of_two")
        with tarfile.open(out, "w:xz", preset=9) as archive:
            for path in sorted(Path(made).rglob("*")):
                entry = archive.gettarinfo(path, str(path.relative_to(made)))
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = ""
                with path.open("rb") if path.is_file() else tempfile.TemporaryFile() as file:
                    archive.addfile(entry, file if path.is_file() else None)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run = depthbench.load(sys.argv[1])
        window = {"train_module": {"max_sequence_length": run.record["spec"]["sequence_length"]}}
        write(Path(sys.argv[2]), run.model, config=their_config(run.config) | window)
    else:
        main(sys.argv[1])

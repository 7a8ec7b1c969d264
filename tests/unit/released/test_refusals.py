"""A checkpoint that is broken, foreign or hostile is one line, and leaves nothing behind."""

import importlib
import json
import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
import torch
from released_folder import filled, save, small, their_config, their_names, write

from depthbench.errors import UserError
from depthbench.released import distcp, import_checkpoint
from depthbench.specs import ImportSpec

IMPORTED = "preln, sandwich, lns, deepnorm, keel, hc, mhc, attnres_full, attnres_block, moda, moda_postln"


@pytest.fixture
def preln(saved_by_olmo_core, tmp_path):
    return shutil.copytree(saved_by_olmo_core / "preln", tmp_path / "checkpoint")


@pytest.fixture
def refused(asked, tmp_path):
    """The one line that an import ends with."""

    def told(folder, **model):
        with pytest.raises(UserError) as error:
            import_checkpoint(asked(folder, **model), tmp_path / "run")
        assert not (tmp_path / "run").exists()
        (line,) = str(error.value).splitlines()
        return line

    return told


class Planted:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def edit(folder, change: Callable):
    """Unpickle `.metadata` with PyTorch's own classes, change it, and write it back."""
    path = folder / "model_and_optim" / ".metadata"
    found = pickle.loads(path.read_bytes())
    change(found)
    path.write_bytes(pickle.dumps(found))


@pytest.fixture
def preln_of_torch(tmp_path):
    return write(tmp_path / "of torch", filled(small("preln")))


def test_a_planted_pickle_is_not_run(preln_of_torch, refused, tmp_path):
    def plant(found):
        found.planner_data = Planted(tmp_path / "it ran")

    edit(preln_of_torch, plant)
    module = os.system.__module__
    assert refused(preln_of_torch) == f"E-PICKLE {module}.system: not allowed in .metadata; do not use this checkpoint"
    assert not (tmp_path / "it ran").exists()


@pytest.mark.parametrize(
    "name", ["builtins.eval", "torch.load", "torch.hub.load", "pathlib.os", "torch.Size.__class__"]
)
def test_a_name_that_has_no_place_there_is_not_looked_up(preln, refused, name):
    module, _, attribute = name.rpartition(".")
    if name == "torch.Size.__class__":
        module, attribute = "torch", "Size.__class__"
    opcodes = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, attribute)) + b"\x93."
    (preln / "model_and_optim" / ".metadata").write_bytes(opcodes)
    assert refused(preln).startswith(f"E-PICKLE {module}.{attribute}: ")


def looked_up(module, name):
    return b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93"


@pytest.mark.parametrize(
    ("module", "name", "called"),
    [
        ("pathlib", "PurePosixPath", b""),
        (distcp.METADATA, "Metadata", b""),
        (distcp.METADATA, "_MEM_FORMAT_ENCODING", b""),
        (distcp.METADATA, "_MEM_FORMAT_ENCODING", b"K\x00\x85R"),  # a member of it
        ("torch.serialization", "_get_layout", b""),
        (distcp.WRITERS[0], "_StorageInfo", b""),
    ],
)
def test_what_is_looked_up_is_not_changed(preln_of_torch, refused, module, name, called):
    """Sets `planted` and the check of paths on it, then goes on as the file did."""
    path = preln_of_torch / "model_and_optim" / ".metadata"
    body = pickle.dumps(pickle.loads(path.read_bytes()), protocol=3)[2:]  # without frames, which would be cut
    value = looked_up("collections", "OrderedDict")
    state = (
        b"(N}" + b"".join(b"X" + struct.pack("<I", len(k)) + k + value + b"s" for k in (b"planted", b"parts")) + b"t"
    )
    path.write_bytes(b"\x80\x04" + looked_up(module, name) + called + state + b"b0" + body)
    assert re.match(
        r"E-PICKLE \w+: not to be changed by \.metadata; do not use this checkpoint$", refused(preln_of_torch)
    )
    found = getattr(importlib.import_module(module), name)
    assert not hasattr(found(0) if called else found, "planted")
    assert not any(hasattr(one, "planted") for one in (PurePosixPath, distcp.StorageInfo, distcp._Path))


def test_a_place_that_is_no_string(preln_of_torch, refused):
    def place(found):
        for info in found.storage_data.values():
            info.relative_path = Path("/etc/passwd")

    edit(preln_of_torch, place)
    assert "cannot be read (file, offset and length are not a string and two numbers)" in refused(preln_of_torch)


def test_a_planted_chunk_is_not_run(preln_of_torch, refused, tmp_path):
    chunks = [*(preln_of_torch / "model_and_optim").glob("*.distcp")]
    for path in chunks:
        torch.save(Planted(tmp_path / "it ran"), path)
        path.write_bytes(path.read_bytes().ljust(1 << 18, b"\0"))
    assert refused(preln_of_torch).startswith("E-CKPT ")
    assert not (tmp_path / "it ran").exists()


def test_what_is_not_there_or_cut(preln, refused, tmp_path):
    assert refused(tmp_path / "none") == (
        f"E-CKPT {tmp_path / 'none'}: no such folder; name the folder of a checkpoint"
    )
    (tmp_path / "empty").mkdir()
    assert "no config.json and no step<N>/; name" in refused(tmp_path / "empty")
    (tmp_path / "steps" / "step10").mkdir(parents=True)
    assert "none of 1 steps holds config.json" in refused(tmp_path / "steps")
    metadata = preln / "model_and_optim" / ".metadata"
    whole = metadata.read_bytes()
    for part in (b"", whole[:1000], whole[:-1], b"not a pickle"):
        metadata.write_bytes(part)
        assert refused(preln).startswith(f"E-CKPT {metadata}: cannot be read (")
    metadata.write_bytes(whole)
    chunk = preln / "model_and_optim" / "__0_0.distcp"
    kept = chunk.read_bytes()
    chunk.write_bytes(kept[:-1])
    assert refused(preln) == (
        f"E-CKPT {chunk}: {len(kept) - 1} bytes, expected at least {len(kept)}; download it again"
    )
    chunk.unlink()
    assert refused(preln).startswith(f"E-CKPT {chunk}: 0 bytes, expected at least ")
    metadata.unlink()
    assert "no model_and_optim/.metadata; download the whole checkpoint" in refused(preln)


def test_broken_bytes_of_a_chunk(preln, refused):
    for path in (preln / "model_and_optim").glob("*.distcp"):
        path.write_bytes(bytes(path.stat().st_size))
    assert refused(preln).startswith(f"E-CKPT {preln / 'model_and_optim' / '.metadata'}: model.")


@pytest.mark.parametrize("path", ["../elsewhere.distcp", "a/../../b.distcp", "/etc/passwd"])
def test_a_path_that_leads_out(preln_of_torch, refused, path):
    def lead_out(found):
        for info in found.storage_data.values():
            info.relative_path = path

    edit(preln_of_torch, lead_out)
    folder = preln_of_torch / "model_and_optim"
    assert refused(preln_of_torch) == f"E-CKPT {PurePosixPath(path)}: leads out of {folder}; do not use this checkpoint"


def test_metadata_that_does_not_fit_the_chunks(preln_of_torch, refused):
    """A tensor of a million times its bytes is not allocated; a gap between chunks is no tensor."""
    name = "model.blocks.0.attention.w_q.weight"

    def grow(found):
        found.state_dict_metadata[name].size = torch.Size([8_000_000, 8])

    edit(preln_of_torch, grow)
    assert f"{name}: cannot be read ([8000000, 8] numbers are more than its chunks hold)" in refused(preln_of_torch)

    def leave_a_gap(found):
        entry = found.state_dict_metadata[name]
        entry.size = torch.Size([9, 8])

    edit(preln_of_torch, leave_a_gap)
    assert f"{name}: cannot be read (its chunks do not cover it)" in refused(preln_of_torch)

    def lose_one(found):
        found.storage_data = {index: info for index, info in found.storage_data.items() if index.fqn != name}

    edit(preln_of_torch, lose_one)
    assert f"{name}: cannot be read (" in refused(preln_of_torch)


def test_wrong_names_and_shapes(refused, tmp_path):
    model = filled(small("preln"))
    state = their_names(model)
    lost = {name: tensor for name, tensor in state.items() if ".w_q." not in name}
    strange = {f"blocks.{l}.bias": torch.ones(1) for l in range(7)}
    assert refused(write(tmp_path / "names", model, state=lost | strange)) == (
        "E-KEYS preln: 34 tensors, expected 30; 7 unexpected: blocks.0.bias, blocks.1.bias, blocks.2.bias, "
        "blocks.3.bias, blocks.4.bias, ...; 3 missing: blocks.0.attention.w_q.weight, "
        "blocks.1.attention.w_q.weight, blocks.2.attention.w_q.weight"
    )
    shape = state | {"blocks.1.feed_forward.w2.weight": torch.ones(16, 8)}
    line = refused(write(tmp_path / "shape", model, state=shape))
    assert line.startswith("E-SHAPE blocks.1.feed_forward.w2.weight: (16, 8), by config.json (8, 16); ")
    twice = their_names(filled(small("hc")))
    name = "blocks.2.feed_forward_hyper_connection.branch.feed_forward.w3.weight"
    twice[name] = twice[name].clone()
    twice[name][0, 0] += 1e-3
    line = refused(write(tmp_path / "copy", filled(small("hc")), state=twice), hc_readout="sum_then_norm")
    assert line.startswith(f"E-KEYS {name}: differs from blocks.2.feed_forward.w3.weight, of which it is a copy")
    moments = write(tmp_path / "moments", model, lambda folder, state: save(folder, {}))
    assert refused(moments).startswith("E-KEYS preln: 0 tensors, expected 30; 30 missing: ")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1.0, 1.0, 1.0], "1, 1, 1, LNS"),
        ([0.0, -1.2e32, 3.1e16], "0, -1.2e+32, 3.1e+16, LNS"),
        ([3**-0.5] * 3, "1 / sqrt(L) in every block, LNS"),
        ([1.0, 2**-0.5], "1, 0.7071, nan, LNS"),
    ],
)
def test_a_factor_that_is_not_that_of_lns(refused, tmp_path, values, told):
    model = filled(small("lns"))
    state = their_names(model) | {f"blocks.{l}.ln_scale": torch.tensor(value) for l, value in enumerate(values)}
    assert refused(write(tmp_path / "it", model, state=state)) == (
        f"E-VARIANT blocks.*.ln_scale: {told} has 1 / sqrt(l + 1); this run did not train LNS"
    )


BLOCK = "model.block"
MIXER = "model.block.sequence_mixer"
VARIANTS = [
    *(("preln", f"{BLOCK}.name", n) for n in ("depth_mup", "completep", "default_depth_scaled", "post_norm")),
    ("preln", f"{BLOCK}.name", "reordered_norm"),
    ("preln", "model.embed_scale", 8.0),
    ("preln", "model.embedding_norm", {"name": "rms"}),
    ("preln", "model.tie_word_embeddings", True),
    ("preln", "model.block_pattern", ["a", "b"]),
    ("preln", "model.block_overrides", {"2": {}}),
    ("preln", "model.lm_head.bias", True),
    ("preln", "model.lm_head.layer_norm.name", "default"),
    ("preln", "model.lm_head.layer_norm.eps", 1e-5),
    ("preln", f"{BLOCK}.layer_norm.name", "l2_norm"),
    ("deepnorm", f"{BLOCK}.layer_norm.name", "rms"),
    ("preln", f"{BLOCK}.layer_norm.bias", True),
    ("preln", f"{BLOCK}.dropout", 0.1),
    ("preln", f"{BLOCK}.attention_residual_alpha", 0.5),
    ("preln", f"{BLOCK}.feed_forward_residual_alpha", 0.5),
    ("preln", f"{BLOCK}.feed_forward.activation", "gelu"),
    ("preln", f"{BLOCK}.feed_forward.bias", True),
    ("preln", f"{MIXER}.qk_norm", {"name": "rms"}),
    ("preln", f"{MIXER}.gate", {"granularity": "headwise"}),
    ("preln", f"{MIXER}.window_size", 512),
    ("preln", f"{MIXER}.clip_qkv", 8.0),
    ("preln", f"{MIXER}.bias", True),
    ("preln", f"{MIXER}.dropout", 0.1),
    ("preln", f"{MIXER}.rope", None),
    ("preln", f"{MIXER}.rope.partial_rotary_factor", 0.5),
    ("preln", f"{MIXER}.rope.no_global_rope", True),
    ("preln", f"{MIXER}.rope.scaling", {"factor": 8.0}),
    ("moda", f"{MIXER}.attention_scale", 1.0),
    *(("hc", f"{BLOCK}.hyper_connections.kind", kind) for kind in ("mhc", "mhc_static", "liger_mhc")),
    ("hc", f"{BLOCK}.hyper_connections.tanh", False),
    ("hc", f"{BLOCK}.hyper_connections.collapse", "mean"),
    ("mhc", f"{BLOCK}.hyper_connections.kind", "mhc"),
    ("mhc", f"{BLOCK}.hyper_connections.liger_pre_eps", 1e-6),
    ("mhc", f"{BLOCK}.hyper_connections.liger_post_mult", 1.0),
    ("attnres_full", f"{BLOCK}.attnres_use_bias", True),
    ("attnres_full", f"{BLOCK}.attnres_learn_logit_scale", True),
    ("attnres_full", f"{BLOCK}.attnres_topk_fraction", 0.5),
    ("attnres_full", f"{BLOCK}.attnres_block_size", None),
]


@pytest.mark.parametrize(("design", "path", "value"), VARIANTS)
def test_a_variant_outside_the_designs(saved_by_olmo_core, refused, tmp_path, design, path, value):
    folder = shutil.copytree(saved_by_olmo_core / design, tmp_path / design)
    config = their_config(small(design))
    if design == "moda":
        del config["model"]["block_overrides"]
    inner, *keys = config, *path.split(".")
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    (folder / "config.json").write_text(json.dumps(config))
    assert refused(folder) == (f"E-VARIANT {path}: {value!r:.80} lies outside the designs that are read: {IMPORTED}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not a JSON mapping"),
        ("[]", "not a JSON mapping"),
        ("{}", "no key 'model'"),
        ('{"model": 3}', "not that of a checkpoint"),
        ('{"model": {"block": {}}}', "no key 'attention'"),
        (json.dumps(their_config(small("preln"))).replace("1e-06", '"small"'), "could not convert string to float"),
    ],
)
def test_a_config_that_is_none(preln, refused, text, told):
    (preln / "config.json").write_text(text)
    line = refused(preln)
    assert line.startswith("E-CKPT ")
    assert told in line


def test_tokenizers_must_be_that_of_the_model(prepared, asked, refused, preln, tmp_path):
    with pytest.raises(UserError, match=r"E-TOK .*are \(511, 1\), the model of 18 entries has \(17, 1\)"):
        import_checkpoint(asked(preln), tmp_path / "run", prepared.folder)
    config = their_config(small("preln"))
    config["dataset"]["tokenizer"]["eos_token_id"] = 2
    (preln / "config.json").write_text(json.dumps(config))
    assert refused(preln).startswith("E-TOK config.json: eos_token_id 2 of 18 entries; ")
    model = filled(small("preln", vocab_size=512))
    folder = write(tmp_path / "steps" / "step4", model)
    text = json.loads((prepared.folder / "tokenizer.json").read_text())
    vocab = text["model"]["vocab"]
    a, b = list(vocab)[100:102]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    (tmp_path / "steps" / "tokenizer").mkdir()
    (tmp_path / "steps" / "tokenizer" / "tokenizer.json").write_text(json.dumps(text))
    with pytest.raises(UserError, match=r"E-TOK .*other entries than .*; prepare data with its tokenizer"):
        import_checkpoint(asked(folder), tmp_path / "run", prepared.folder)


def test_another_model_than_asked_for_and_a_trained_run_in_the_way(preln, asked, refused, tmp_path):
    line = refused(preln, design="preln", n_layers=4)
    assert line == f"E-CKPT {preln}: not the model of checkpoint: n_layers=3, not 4; name another folder"
    assert "preln has one readout; leave it out" in refused(preln, hc_readout="sum_then_norm")
    there = tmp_path / "trained"
    there.mkdir()
    (there / "run.json").write_text('{"status": "ok"}')
    with pytest.raises(UserError, match=r"E-RUN .*holds a run that was not imported; name another folder"):
        import_checkpoint(asked(preln), there)


def of_a_training(**changes):
    """The config.json of one with 7600 steps at 2e-3."""
    training = {"trainer": {"max_duration": {"value": 7600, "unit": "steps"}}, "train_module": {"optim": {"lr": 2e-3}}}
    return their_config(small("preln")) | training | changes


@pytest.mark.parametrize(
    ("step", "changes", "told"),
    [
        (0, {}, "step 0, not 7600"),
        (3000, {"trainer": {}}, "step 3000, not 7600"),
        (7600, {"train_module": {"optim": {"lr": 1e-2}}}, "lr 0.01, not 2e-3"),
        (7600, {"trainer": {"max_duration": {"value": 9500, "unit": "steps"}}}, "steps 9500, not 7600"),
        (0, {"train_module": {"optim": {"lr": 1e-2}}}, "step 0, not 7600; lr 0.01, not 2e-3"),
    ],
)
def test_a_study_takes_the_finished_run_only(asked, tmp_path, step, changes, told):
    """A person takes any."""
    folder = write(tmp_path / f"step{step}", filled(small("preln")), config=of_a_training(**changes))
    spec = ImportSpec(run_id="it", version=1, source=str(folder), steps=7600, lr="2e-3")
    with pytest.raises(UserError) as error:
        import_checkpoint(spec, tmp_path / "run")
    assert str(error.value) == f"E-CKPT {folder}: not the finished it: {told}; name another folder"
    assert not (tmp_path / "run").exists()
    assert import_checkpoint(asked(folder), tmp_path / "run")["step"] == step


def test_what_a_checkpoint_tells_of_its_training(asked, refused, tmp_path):
    model, spec = filled(small("preln")), {"run_id": "it", "version": 1, "steps": 7600, "lr": "2e-3"}
    told = write(tmp_path / "step7600", model, config=of_a_training())
    found = import_checkpoint(ImportSpec(source=str(told), **spec), tmp_path / "a")["imported"]
    assert (found["step"], found["steps"], found["lr"]) == (7600, 7600, 2e-3)
    silent = write(tmp_path / "root", model, config=of_a_training(trainer=None, train_module={"optim": {}}))
    found = import_checkpoint(ImportSpec(source=str(silent), **spec), tmp_path / "b")["imported"]
    assert (found["step"], found["steps"], found["lr"]) == ("as declared",) * 3
    found = import_checkpoint(asked(silent), tmp_path / "c")["imported"]
    assert not {"step", "steps", "lr"} & found.keys()
    strange = write(tmp_path / "strange", model, config=of_a_training(train_module={"optim": {"lr": "high"}}))
    assert refused(strange) == f"E-CKPT {strange}/config.json: lr is 'high', a number is wanted; mend it"

import errno
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from depthbench import checkpoint, files, loading, train
from depthbench.data.loader import Windows
from depthbench.designs import DESIGNS
from depthbench.model import ModelConfig, build_model


def start(prepared, tmp_path, micro_batch=4, **changes):
    spec = prepared.spec(**changes)
    return train.Training(spec, Windows(prepared.folder, spec.sequence_length), tmp_path / "resume", micro_batch)


def test_a_step_equals_plain_pytorch(prepared, tmp_path):
    """Mean cross-entropy of the whole batch, clipping by the global norm, AdamW at the scheduled rate."""
    run = start(prepared, tmp_path, steps=20)
    model = build_model(ModelConfig(**run.spec.model), run.spec.seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False)
    for step, rate in enumerate([0.005, 0.01], start=1):  # W = 2 of 20 steps
        tokens = torch.from_numpy(run.windows.batch(step - 1, 4, 0))
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        for p in model.parameters():
            p.grad *= min(1.0, 1.0 / (norm + 1e-6))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        row = run.advance()
        assert row["loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert row["grad_norm"] == pytest.approx(norm, rel=1e-5)
        assert row["lr"] == pytest.approx(rate, rel=1e-12)
        assert (row["step"], row["tokens"]) == (step, step * 4 * 32)
    for name, parameter in run.model.named_parameters():
        torch.testing.assert_close(
            parameter, model.get_parameter(name), rtol=1e-4, atol=2e-5
        )  # Adam divides small gradients by themselves


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_accumulation_changes_nothing(prepared, tmp_path, micro_batch):
    whole, parts = start(prepared, tmp_path / "a", 4), start(prepared, tmp_path / "b", micro_batch)
    for _ in range(3):
        a, b = whole.advance(), parts.advance()
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-6)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-5)
    for name, parameter in whole.model.named_parameters():
        torch.testing.assert_close(parts.model.get_parameter(name), parameter, rtol=1e-4, atol=5e-6)


def test_a_gradient_that_is_not_finite_takes_no_step_and_is_a_result(prepared, tmp_path, monkeypatch):
    """Case D05: an inf in one gradient at step 7."""
    backward = train.linear_cross_entropy
    calls = []

    def poisoned(*args):
        calls.append(1)
        return backward(*args) * (math.inf if len(calls) == 7 else 1.0)

    reference = start(prepared, tmp_path / "reference")
    for _ in range(6):
        reference.advance()
    monkeypatch.setattr(train, "linear_cross_entropy", poisoned)
    assert train.train(prepared.spec(), prepared.folder, tmp_path / "run", 4, 600.0)
    record = loading.record(tmp_path / "run")
    assert (record["status"], record["cause"], record["step"]) == ("diverged", "loss", 7)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert rows[-1]["grad_norm"] is None
    weights = loading.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(weights[n], t) for n, t in reference.model.state_dict().items())


def test_a_loss_that_is_finite_may_have_a_gradient_that_is_not(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "get_total_norm", lambda gradients: torch.tensor(math.inf))
    assert train.train(prepared.spec(), prepared.folder, tmp_path, 4, 600.0)
    record = loading.record(tmp_path)
    assert (record["status"], record["cause"], record["step"]) == ("diverged", "gradient", 1)


def test_a_finished_run_is_published_again_without_training(prepared, tmp_path, monkeypatch):
    folder, spec = tmp_path / "run", prepared.spec(steps=3)
    assert train.train(spec, prepared.folder, folder, 4, 600.0)
    before = {p.name: p.read_bytes() for p in folder.glob("[!.]*") if p.is_file()}
    assert set(before) == {"run.json", "metrics.jsonl", "model.safetensors"}
    for name in before:  # as Snakemake does before it starts a job again
        (folder / name).unlink()
    monkeypatch.setattr(train.Training, "advance", None)
    assert train.train(spec, prepared.folder, folder, 4, 600.0)
    assert {p.name: p.read_bytes() for p in folder.glob("[!.]*") if p.is_file()} == before
    assert not list((folder / "resume").glob("step-*"))


def test_another_spec_starts_at_zero_and_the_old_one_is_taken_up_again(prepared, tmp_path, capsys):
    """A value that is set and taken back trains nothing twice."""
    started = {}
    for rate in ("1e-2", "2e-2", "1e-2", "2e-2"):
        train.train(prepared.spec(steps=2, lr=rate), prepared.folder, tmp_path, 4, 600.0)
        record = loading.record(tmp_path)
        assert (record["spec"]["lr"], record["step"]) == (rate, 2)
        assert started.setdefault(rate, record["legs"]) == record["legs"]
    assert capsys.readouterr().out.count("belongs to this spec: taken back") == 2
    assert len(list(tmp_path.glob("resume-*"))) == 1


def test_data_prepared_otherwise_is_refused(prepared, tmp_path):
    spec = prepared.spec()
    other = spec.model_copy(update={"data": spec.data.model_copy(update={"val_fraction": 0.2})})
    with pytest.raises(train.UserError, match=r"E-SHARD .*prepared with other settings"):
        train.train(other, prepared.folder, tmp_path, 4, 600.0)


def test_a_checkpoint_of_other_data_is_refused(prepared, tmp_path):
    run = start(prepared, tmp_path)
    run.advance()
    run.save()
    tensors, record = checkpoint.latest(tmp_path / "resume")
    assert record["next_windows"] == run.windows.ids(1, 4, 0).tolist()
    checkpoint.save(tmp_path / "resume", 1, tensors, {**record, "data_id": "other"})
    with pytest.raises(train.UserError, match="E-RESUME"):
        start(prepared, tmp_path)


@pytest.mark.parametrize("change", ["gone", "new", "shape"])
def test_weights_of_another_version_of_a_design_are_refused(prepared, tmp_path, change):
    """An edited file of a design whose `version` was not raised."""
    run = start(prepared, tmp_path)
    run.advance()
    run.save()
    tensors, record = checkpoint.latest(tmp_path / "resume")
    name = next(n for n in tensors if n.startswith("model.") and tensors[n].ndim == 1)
    if change == "new":
        tensors["model.gate"] = tensors[name].clone()
    elif change == "shape":
        tensors[name] = tensors[name][:-1]
    else:
        del tensors[name]
    checkpoint.save(tmp_path / "resume", 1, tensors, record)
    with pytest.raises(train.UserError, match=r"E-RESUME .* other weights than the design's file makes now"):
        start(prepared, tmp_path)


def test_a_finished_run_of_another_version_of_a_design_is_refused(prepared, tmp_path):
    train.train(prepared.spec(steps=1), prepared.folder, tmp_path, 4, 600.0)
    weights = load_file(tmp_path / "model.safetensors")
    checkpoint.save_tensors(tmp_path / "model.safetensors", {f"old.{name}": w for name, w in weights.items()})
    record = json.loads((tmp_path / "run.json").read_text())
    record["sha256"]["model.safetensors"] = files.sha256(tmp_path / "model.safetensors")
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(train.UserError, match=r"E-RUN .* other weights than the design's file makes now"):
        loading.load(tmp_path)


def test_code_that_would_go_on_with_other_windows_is_refused(prepared, tmp_path, monkeypatch):
    run = start(prepared, tmp_path)
    run.advance()
    run.save()
    monkeypatch.setattr(Windows, "ids", lambda self, step, size, seed: np.arange(size))
    with pytest.raises(train.UserError, match=r"E-RESUME .* other windows of the text"):
        start(prepared, tmp_path)


def test_seeds_change_weights_and_order(prepared, tmp_path):
    a, b = start(prepared, tmp_path / "a"), start(prepared, tmp_path / "b", seed=1)
    assert not torch.equal(a.model.embed.weight, b.model.embed.weight)
    assert not np.array_equal(a.windows.ids(0, 4, 0), a.windows.ids(0, 4, 1))


def test_moments_come_back_to_the_bit(prepared, tmp_path):
    run = start(prepared, tmp_path)
    for _ in range(3):
        run.advance()
    run.save()
    again = start(prepared, tmp_path)
    first, second = (r.optimizer.moments() for r in (run, again))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_file_system_that_fails_for_now_costs_no_checkpoint(prepared, tmp_path, monkeypatch):
    run = start(prepared, tmp_path)
    for _ in range(2):
        run.advance()
        run.save()
    kept = sorted(path.name for path in (tmp_path / "resume").glob("step-*"))

    def stale(path):
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    with monkeypatch.context() as broken:
        broken.setattr(checkpoint.files, "sha256", stale)
        with pytest.raises(train.UserError, match=r"^E-DISK [^\n]*Stale file handle[^\n]*$"):
            train.train(prepared.spec(), prepared.folder, tmp_path, 4, 600.0)
    assert sorted(path.name for path in (tmp_path / "resume").glob("step-*")) == kept
    assert start(prepared, tmp_path).step == 2


@pytest.mark.parametrize("place", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("design", DESIGNS)
def test_five_and_five_steps_are_ten(prepared, tmp_path, design, place):
    """To the bit on a CPU; on a GPU some sums have no fixed order, within 1e-4 of the weights there."""
    if (place == "gpu") != torch.cuda.is_available():
        pytest.skip(f"needs {'a CUDA device' if place == 'gpu' else 'a machine without one'}")
    spec = prepared.spec(design, steps=10)
    whole = train.Training(spec, Windows(prepared.folder, 32), tmp_path / "whole", 4)
    for _ in range(10):
        whole.advance()
    for _ in range(2):
        run = train.Training(spec, Windows(prepared.folder, 32), tmp_path / "parts", 4)
        for _ in range(5):
            run.advance()
        run.save()
    ours, theirs = (torch.cat([p.detach().flatten() for p in r.model.parameters()]) for r in (run, whole))
    assert torch.equal(ours, theirs) if place == "cpu" else (ours - theirs).norm() < 1e-4 * theirs.norm()


def test_a_broken_checkpoint_and_the_one_used_instead_are_named(prepared, tmp_path, capsys):
    run = start(prepared, tmp_path)
    for _ in range(2):
        run.advance()
        run.save()
    (tmp_path / "resume/step-000000002.safetensors").write_bytes(b"broken")
    assert start(prepared, tmp_path).step == 1
    told = capsys.readouterr().out
    assert "step-000000002.safetensors is passed over: size or checksum" in told
    assert "step-000000001.safetensors is used instead" in told


def test_broken_checkpoints_do_not_cost_the_next_one(prepared, tmp_path):
    """Two that cannot be read, of later steps: training starts again, and what it saves stays."""
    run = start(prepared, tmp_path)
    for _ in range(4):
        run.advance()
        if run.step > 2:
            run.save()
    for path in (tmp_path / "resume").glob("*.safetensors"):
        path.write_bytes(b"broken")
    again = start(prepared, tmp_path)
    assert again.step == 0
    again.advance()
    again.save()
    assert checkpoint.latest(tmp_path / "resume")[1]["step"] == 1


def test_divergence_in_the_first_step_survives_a_kill_before_it_is_published(prepared, tmp_path, monkeypatch):
    original = train.linear_cross_entropy
    monkeypatch.setattr(train, "linear_cross_entropy", lambda *a: original(*a) * math.inf)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train.Training, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            train.train(prepared.spec(), prepared.folder, tmp_path, 4, 600.0)
    assert train.train(prepared.spec(), prepared.folder, tmp_path, 4, 600.0)
    assert (loading.record(tmp_path)["status"], loading.record(tmp_path)["step"]) == ("diverged", 1)


@pytest.mark.parametrize("harm", ["flip", "gone", "record"])
def test_what_was_published_is_trained_again_when_damaged(prepared, tmp_path, harm):
    train.train(prepared.spec(steps=3), prepared.folder, tmp_path, 4, 600.0)
    weights = tmp_path / "model.safetensors"
    before = weights.read_bytes()
    if harm == "flip":  # published files are hard links of these
        with weights.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"x")
    elif harm == "gone":
        (tmp_path / "resume/final/model.safetensors").unlink()
    else:
        (tmp_path / "resume/final/run.json").write_text("{")
    assert train.train(prepared.spec(steps=3), prepared.folder, tmp_path, 4, 600.0)
    assert weights.read_bytes() == before
    loading.load(tmp_path)


def test_metrics_that_are_shorter_than_the_checkpoint_are_told(prepared, tmp_path):
    run = start(prepared, tmp_path)
    run.advance()
    run.save()
    (tmp_path / "resume/metrics.jsonl").unlink()
    with pytest.raises(train.UserError, match=r"E-RESUME .*metrics\.jsonl: holds 0 steps, the checkpoint is of step 1"):
        start(prepared, tmp_path)


def test_leftovers_of_killed_writers_go(prepared, tmp_path):
    (tmp_path / "resume").mkdir()
    part = tmp_path / "resume" / ".step-000000001.safetensors.99.part"
    part.write_bytes(b"half")
    train.train(prepared.spec(steps=2), prepared.folder, tmp_path, 4, 600.0)
    assert not part.exists()


def test_a_run_is_found_from_anywhere_and_read_by_everybody(prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(prepared.folder.parent)
    train.train(prepared.spec(steps=2), Path(prepared.folder.name), tmp_path / "run", 4, 600.0)
    monkeypatch.chdir(tmp_path)
    model, config, tokenizer = loading.load("run")
    assert model.cfg == config
    assert tokenizer.decode(tokenizer.encode("a text").ids) == "a text"
    assert (tmp_path / "run/model.safetensors").stat().st_mode == (tmp_path / "run/run.json").stat().st_mode


def test_a_run_in_a_linked_folder_finds_its_text(prepared, tmp_path):
    """Results are often a link to a file system with room; the way from a run to its text is between real folders."""
    (tmp_path / "far/away/scratch").mkdir(parents=True)
    (tmp_path / "results").symlink_to(tmp_path / "far/away/scratch")
    folder = tmp_path / "results/run"
    train.train(prepared.spec(steps=2), prepared.folder, folder, 4, 600.0)
    assert loading.data_of(folder, loading.record(folder)) == prepared.folder.resolve()


def test_a_requeued_job_whose_spec_changed_refuses(prepared, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    train.train(prepared.spec(steps=1), prepared.folder, tmp_path, 4, 600.0)
    train.train(prepared.spec(steps=2), prepared.folder, tmp_path, 4, 600.0)  # by hand in an allocation
    assert loading.record(tmp_path)["step"] == 2
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with pytest.raises(train.UserError, match=r"E-RESUME .*job 12 began with another spec"):
        train.train(prepared.spec(steps=3), prepared.folder, tmp_path, 4, 600.0)
    assert loading.record(tmp_path)["step"] == 2
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    train.train(prepared.spec(steps=3), prepared.folder, tmp_path, 4, 600.0)
    assert loading.record(tmp_path)["step"] == 3


def test_every_leg_leaves_its_lines_and_tracebacks(prepared, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(train.Training, "advance", None)
        with pytest.raises(TypeError):
            train.train(prepared.spec(steps=2), prepared.folder, tmp_path, 4, 600.0)
    train.train(prepared.spec(steps=2), prepared.folder, tmp_path, 4, 600.0)
    log = (tmp_path / "resume/log.txt").read_text()
    assert log.count("test/runs/preln/u-d16-l2/lr1e-2-s0: ") == 2
    assert "Traceback" in log
    assert log.endswith("ok at step 2/2\n")

"""Train one model: AdamW, warm-up and cosine, and an exact way to stop and go on.

Loss of a step = sum over all predictions of the global batch / their number, whatever the micro-batch; a window of
T tokens gives T - 1 predictions. Nothing in training is random but the initial weights and the order of the windows,
both functions of the seed, so weights, moments and the step are the whole state. Several ranks share the batch: the
module `ranks`.
"""

import json
import math
import os
import signal
import time
import traceback
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from depthbench import checkpoint, device, files, lock, optim, progress, provenance, ranks, resume
from depthbench.data.loader import Windows, manifest
from depthbench.errors import UserError
from depthbench.model.backbone import Model, build_model, store_bfloat16
from depthbench.model.config import ModelConfig
from depthbench.specs import RunSpec
from depthbench_kernels import backend, paths
from depthbench_kernels.linear_cross_entropy import linear_cross_entropy

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
STEPS_BETWEEN_LINES = 10
IGNORED = -100  # target of a window's last position, which has no next token


class Loss(torch.nn.Module):
    """The summed loss of a micro-batch [nats]; a module, since DDP sees to the gradients of modules."""

    def __init__(self, model: Model, compute: str):
        super().__init__()
        self.model, self.compute = model, compute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the sum over the predictions of (B, T) tokens."""
        target = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=IGNORED)
        with device.compute_type(self.compute, tokens.device):
            features = self.model.features(tokens)
            return linear_cross_entropy(features.flatten(0, 1), self.model.lm_head.weight, target.flatten(), IGNORED)


class Training:
    """A run in progress: model, optimizer, position in the data, and the private folder that it goes on from."""

    def __init__(self, spec: RunSpec, windows: Windows, folder: Path, micro_batch: int):
        self.spec, self.windows, self.resume, self.micro_batch = spec, windows, folder, micro_batch
        self.device = device.choose(spec.threads)
        self.model = build_model(ModelConfig.read(spec.model), spec.seed).to(self.device)
        if spec.precision.master == "bfloat16":
            store_bfloat16(self.model)
        self.optimizer = optim.AdamW(self.model, self.model.residual.no_decay, spec.optimizer)
        self.step = 0
        self.status = "ok"
        self.legs: list[dict[str, Any]] = []
        self.stop_signal: int | None = None
        ranks.by_first(self._open)
        self._spread()
        self.loss = ranks.parallel(Loss(self.model, spec.precision.compute))
        share = -(-spec.batch_sequences // ranks.count())
        self.legs.append(
            {
                "from_step": self.step,
                "started": time.time(),
                "ranks": ranks.count(),
                "nodes": ranks.nodes(),
                "micro_batch": micro_batch,
                "accumulation": -(-share // micro_batch),
                "kernels": backend(),
                "paths": paths(),
                **provenance.commit(),
                **provenance.machine(self.device),
            }
        )

    def _open(self) -> None:
        self._restore()
        self.metrics = resume.open_metrics(self.resume, self.step)
        self.log = (self.resume / "log.txt").open("a", encoding="utf-8")

    def _restore(self) -> None:
        found = checkpoint.latest(self.resume)
        checkpoint.remove_after(self.resume, found[1]["step"] if found else -1)
        if found is None:
            return
        tensors, record = found
        if record["data_id"] != self.windows.data_id:
            raise UserError(
                "E-RESUME",
                f"{self.resume}: its checkpoint was trained on other data than {self.windows.folder} holds now; "
                "bring that data back, or remove the folder to start at step 0",
            )
        if record["next_windows"] != self._next_windows(record["step"]):
            raise UserError(
                "E-RESUME",
                f"{self.resume}: its checkpoint was to go on with other windows of the text than this code takes; "
                "bring that code back, or remove the folder to start at step 0",
            )
        weights = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        if {n: t.shape for n, t in weights.items()} != {n: t.shape for n, t in self.model.state_dict().items()}:
            raise UserError(
                "E-RESUME",
                f"{self.resume}: its checkpoint has other weights than the design's file makes now; "
                "bring that file back, or raise the design's `version` to train anew",
            )
        self.step, self.status, self.legs = record["step"], record["status"], record["legs"]
        self.model.load_state_dict(weights)
        self.optimizer.restore(tensors)

    def _spread(self) -> None:
        """Give the other ranks what rank 0 has restored; the weights follow when the loss becomes parallel."""
        self.step, self.status, self.legs = ranks.told((self.step, self.status, self.legs))
        self.optimizer.restore(ranks.tell_tensors(self.optimizer.moments()))

    def say(self, text: str) -> None:
        """Print a line, and keep it with those of the other legs."""
        if ranks.first():
            print(text, flush=True)
        ranks.by_first(lambda: print(text, file=self.log, flush=True))

    def stopped(self) -> bool:
        """Whether a signal has reached any rank: all learn of it at the same step."""
        number = ranks.largest(self.stop_signal or 0)
        if number:  # or a signal that came just now would be lost
            self.stop_signal = number
        return bool(number)

    def save(self) -> None:
        """Write a checkpoint of the present step; the metrics up to it reach the disk first."""
        self.metrics.flush()
        files.sync(Path(self.metrics.name))
        leg = self.legs[-1]
        leg["to_step"], leg["seconds"] = self.step, round(time.time() - leg["started"], 3)
        record = {
            "status": self.status,
            "legs": self.legs,
            "data_id": self.windows.data_id,
            "next_windows": self._next_windows(self.step),
        }
        weights = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        checkpoint.save(self.resume, self.step, weights | self.optimizer.moments(), record)

    def _next_windows(self, step: int) -> list[int]:
        return self.windows.ids(step, self.spec.batch_sequences, self.spec.seed).tolist()

    def advance(self) -> dict[str, Any]:
        """Take one step, or find that it cannot be taken (then `status` is diverged); log and return its metrics."""
        started, spec = time.perf_counter(), self.spec
        share = ranks.share(spec.batch_sequences)
        loss = self._gradients(torch.from_numpy(self.windows.batch(self.step, spec.batch_sequences, spec.seed, share)))
        # bfloat16 sums would lose most of the norm's digits; float32 gradients are taken as they are
        parameters = self.optimizer.parameters.values()
        gradients = [p.grad.float() for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self.step += 1
        rate = optim.learning_rate(self.step, spec.steps, float(spec.lr), spec.schedule)
        if math.isfinite(loss) and math.isfinite(norm):
            torch.nn.utils.clip_grads_with_norm_(parameters, spec.optimizer.clip, norm)
            self.optimizer.step(rate)
        else:  # the weights stay those of the last finite step
            self.status = "diverged"
        tokens = spec.batch_sequences * spec.sequence_length
        row = {
            "step": self.step,
            "tokens": self.step * tokens,
            "loss": _finite(loss),
            "grad_norm": _finite(norm.item()),
            "lr": rate,
            "tokens_per_s": round(tokens / (time.perf_counter() - started), 1),
            "memory_bytes": ranks.largest(provenance.peak_memory(self.device)),
            "time": round(time.time(), 3),
        }
        ranks.by_first(lambda: print(json.dumps(row), file=self.metrics, flush=True))
        return row

    def _gradients(self, tokens: torch.Tensor) -> float:
        """Fill the gradients of the mean loss over the global batch from this rank's share; return that loss [nats]."""
        # Gradients of several ranks live in the buffers that are sent, so they are zeroed in place.
        self.optimizer.zero_grad(set_to_none=ranks.count() == 1)
        predictions = self.spec.batch_sequences * (self.spec.sequence_length - 1)
        total = torch.zeros((), device=self.device)
        parts = tokens.split(self.micro_batch)
        for number, part in enumerate(parts, start=1):
            with ranks.last_only(self.loss, number == len(parts)):
                nll = self.loss(part.to(self.device))
                (nll / predictions).backward()
            total += nll.detach()
        return ranks.add_up(total).item() / predictions

    def publish(self) -> None:
        """Write the declared outputs, `run.json` last; the checkpoints have then served."""
        final = self.resume / "final"
        metrics = (self.resume / "metrics.jsonl").read_text()
        last = json.loads(metrics.splitlines()[-1])
        checkpoint.save_tensors(final / "model.safetensors", self.model.state_dict())
        files.write_text(final / "metrics.jsonl", metrics)
        sums = {name: files.sha256(final / name) for name in ("model.safetensors", "metrics.jsonl")}
        windows, config = self.windows, self.model.cfg
        record = {
            "run_id": self.spec.run_id,
            "status": self.status,
            "cause": None if self.status == "ok" else "loss" if last["loss"] is None else "gradient",
            "step": self.step,
            "tokens": self.step * self.spec.batch_sequences * self.spec.sequence_length,
            "loss": last["loss"],
            "n_params": config.count_params(),
            "table_params": config.table_params(),
            "data": os.path.relpath(windows.folder.resolve(), self.resume.parent.resolve()),
            "data_id": windows.data_id,
            "epochs": windows.epochs(self.step, self.spec.batch_sequences),
            "sha256": sums,
            "legs": self.legs,
            "spec": self.spec.as_dict(),
        }
        files.write_text(final / "run.json", json.dumps(record, indent=1) + "\n")
        resume.publish(self.resume)
        checkpoint.remove(self.resume)


def train(spec: RunSpec, data: Path, folder: Path, micro_batch: int, checkpoint_seconds: float) -> bool:
    """Train the run of `spec` on the prepared `data` into the run's `folder`, or go on from its last checkpoint.

    Returns:
        False if a signal (INT, TERM, USR1, USR2) stopped it: a checkpoint was saved, the next call goes on.

    Raises:
        UserError: E-SHARD, E-BUDGET, E-RESUME, E-LOCK, E-CONFIG, E-DISK.
    """
    with files.disk_errors(), ExitStack() as held:
        private, done = folder / "resume", False
        with ranks.together():
            if ranks.first():
                lock.tell(spec.run_id)
            windows = _windows(spec, data)
            if ranks.first():
                held.enter_context(lock.held(folder, spec.run_id))
                resume.claim(folder, spec.as_dict())
                done = resume.finished(private, windows.data_id)
                if done:
                    resume.publish(private)
                    print(f"{spec.run_id}: trained before with this spec on this data, published again", flush=True)
        if ranks.told(done):
            return True
        run = Training(spec, windows, private, micro_batch)
        try:
            return _leg(run, checkpoint_seconds)
        except Exception:
            if ranks.first():
                traceback.print_exc(file=run.log)
            raise


def _windows(spec: RunSpec, data: Path) -> Windows:
    """Return the training windows once they and the ranks are known to fit the spec."""
    if not spec.data.matches(manifest(data).get("spec", {})):
        raise UserError("E-SHARD", f"{data}: prepared with other settings than the run's; prepare the data again")
    windows = Windows(data, spec.sequence_length)
    windows.check_budget(spec.steps, spec.batch_sequences)
    if ranks.count() > spec.batch_sequences:
        raise UserError(
            "E-CONFIG",
            f"batch_sequences={spec.batch_sequences}: less than one for each of {ranks.count()} processes; "
            f"train on {spec.batch_sequences} GPUs or fewer",
        )
    return windows


def _leg(run: Training, checkpoint_seconds: float) -> bool:
    """Train until the end or a signal; return whether the run is finished and published."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda received, _: setattr(run, "stop_signal", received))
    run.say(_headline(run))
    finished = _steps(run, checkpoint_seconds)
    if finished:
        ranks.by_first(run.publish)
        what = " (loss or gradient not finite)" * (run.status != "ok")
        run.say(f"{run.status} at step {run.step}/{run.spec.steps}{what}")
    else:
        name = signal.Signals(run.stop_signal or 0).name
        run.say(f"{name}: saved step {run.step}/{run.spec.steps}; the same command goes on from there")
    return finished


def _steps(run: Training, checkpoint_seconds: float) -> bool:
    """Step until the end or a signal, and save; return whether the run is finished."""
    console = Console()
    shown = console.is_terminal and ranks.first()
    saved = time.monotonic()
    with progress.bar(console) if shown else nullcontext() as bar:
        task = bar.add_task("training", total=run.spec.steps, completed=run.step, note="") if bar else None
        while run.step < run.spec.steps and run.status == "ok" and not run.stopped():
            row = run.advance()
            loss = "not finite" if row["loss"] is None else f"{row['loss']:.4f}"
            if bar and task is not None:
                bar.update(task, completed=run.step, note=f"loss {loss}")
            elif run.step % STEPS_BETWEEN_LINES == 0 or run.step == run.spec.steps:
                run.say(f"step {run.step}/{run.spec.steps} loss {loss} {row['tokens_per_s']:.0f} tokens/s")
            if ranks.largest(time.monotonic() - saved >= checkpoint_seconds):
                ranks.by_first(run.save)
                saved = time.monotonic()
    ranks.by_first(run.save)
    return run.step == run.spec.steps or run.status != "ok"


def _headline(run: Training) -> str:
    leg, config = run.legs[-1], run.model.cfg
    commit = f"{leg['commit'] or 'unknown'}{' (edited)' * bool(leg['dirty'])}"
    return (
        f"{run.spec.run_id}: {config.count_params():,} parameters, from step {run.step}/{run.spec.steps}; "
        f"{leg['ranks']} x {leg['device']}, {leg['threads']} threads on {leg['cores']} cores, "
        f"kernels {leg['kernels']}, host {leg['host']}, job {leg['slurm_job_id'] or 'none'}, commit {commit}"
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows no NaN

"""AdamW with declared decay groups, and the learning-rate schedule."""

import math

import torch
from torch import nn

from depthbench.schema import Optimizer, Schedule


def learning_rate(step: int, steps: int, peak: float, schedule: Schedule) -> float:
    """Return the rate of step t = 1..S: linear warm-up from zero over W = round(warmup S) steps, then a cosine.

    peak t/W for t < W; then final peak + (1 - final) peak (1 + cos(pi (t - W) / (S - W))) / 2.
    """
    warmup = round(schedule.warmup * steps)
    if step < warmup:
        return peak * step / warmup
    done = (step - warmup) / (steps - warmup) if steps > warmup else 1.0
    low = schedule.final * peak
    return low + (peak - low) * (1 + math.cos(math.pi * done)) / 2


def decay_groups(model: nn.Module, no_decay: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the names of the parameters that decay and of those that do not (last name part in `no_decay`)."""
    groups: dict[str, list[str]] = {"decay": [], "no_decay": []}
    for name, _ in model.named_parameters():
        groups["no_decay" if name.rpartition(".")[2] in no_decay else "decay"].append(name)
    return groups


def build(model: nn.Module, no_decay: tuple[str, ...], settings: Optimizer) -> torch.optim.AdamW:
    """Return AdamW over all parameters; the rate is set before each step."""
    parameters = dict(model.named_parameters())
    groups = decay_groups(model, no_decay)
    return torch.optim.AdamW(
        [
            {"params": [parameters[n] for n in groups[key]], "weight_decay": decay}
            for key, decay in (("decay", settings.weight_decay), ("no_decay", 0.0))
            if groups[key]
        ],
        lr=0.0,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )


def moments(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """Return AdamW's state by parameter: `exp_avg.<name>`, `exp_avg_sq.<name>`, `step.<name>`."""
    return {
        f"{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def restore_moments(model: nn.Module, optimizer: torch.optim.AdamW, saved: dict[str, torch.Tensor]) -> None:
    """Put back what `moments` returned; a run that diverged in its first step has none."""
    for name, parameter in model.named_parameters():
        if f"step.{name}" in saved:
            optimizer.state[parameter] = {
                key: saved[f"{key}.{name}"].to(parameter.device) for key in ("step", "exp_avg", "exp_avg_sq")
            }

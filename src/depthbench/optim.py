"""AdamW with declared decay groups, and the learning-rate schedule."""

import math
from collections.abc import Mapping

import torch
from torch import nn
from torch.optim.adamw import adamw

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
    """Return the names of the parameters that decay and of those that do not (last name part in `no_decay`).

    Raises:
        ValueError: if `no_decay` names no parameter: it would decay unnoticed.
    """
    groups: dict[str, list[str]] = {"decay": [], "no_decay": []}
    for name, _ in model.named_parameters():
        groups["no_decay" if name.rpartition(".")[2] in no_decay else "decay"].append(name)
    if unknown := set(no_decay) - {name.rpartition(".")[2] for name in groups["no_decay"]}:
        raise ValueError(f"no_decay: {min(unknown)} is the last part of no parameter's name")
    return groups


class AdamW:
    """AdamW (arXiv 1711.05101) over all parameters of a model, in groups that decay and that do not.

    PyTorch's functional form: `torch.optim.AdamW` imports the compiler, longer than many a small run takes.
    """

    def __init__(self, model: nn.Module, no_decay: tuple[str, ...], settings: Optimizer):
        self.parameters, self.settings = dict(model.named_parameters()), settings
        groups = decay_groups(model, no_decay)
        # Fused, PyTorch rounds a whole step once. The authors' bfloat16 weights take one that rounds each operation,
        # which leaves nothing of the decay.
        self.groups = [
            ([name for name in names if (self.parameters[name].dtype == torch.bfloat16) != fused], decay, fused)
            for names, decay in ((groups["decay"], settings.weight_decay), (groups["no_decay"], 0.0))
            for fused in (True, False)
        ]
        self.state: dict[str, dict[str, torch.Tensor]] = {}  # parameter -> step, exp_avg, exp_avg_sq

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or set them to zero where they are."""
        for parameter in self.parameters.values():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Take a step at this rate for the parameters that have a gradient."""
        settings = self.settings
        for names, decay, fused in self.groups:
            gradients = {name: g for name in names if (g := self.parameters[name].grad) is not None}
            if not gradients:
                continue
            states = [self.state.get(name) or self._begin(name) for name in gradients]
            adamw(
                [self.parameters[name] for name in gradients],
                list(gradients.values()),
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=fused,
                foreach=not fused,
                amsgrad=False,
                beta1=settings.betas[0],
                beta2=settings.betas[1],
                lr=lr,
                weight_decay=decay,
                eps=settings.eps,
                maximize=False,
            )

    def _begin(self, name: str) -> dict[str, torch.Tensor]:
        parameter = self.parameters[name]
        moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
        self.state[name] = {"step": torch.zeros((), device=parameter.device)} | moments
        return self.state[name]

    def moments(self) -> dict[str, torch.Tensor]:
        """Return the state by parameter: `step.<name>`, `exp_avg.<name>`, `exp_avg_sq.<name>`."""
        return {f"{key}.{name}": value for name, state in self.state.items() for key, value in state.items()}

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Put back what `moments` returned; a run that diverged in its first step has none."""
        for name, parameter in self.parameters.items():
            if f"step.{name}" in saved:
                keys = ("step", "exp_avg", "exp_avg_sq")
                self.state[name] = {key: saved[f"{key}.{name}"].to(parameter.device) for key in keys}

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from depthbench import optim
from depthbench.schema import Optimizer, Schedule

PAPER = Schedule(warmup=0.1, final=0.1)


@pytest.mark.parametrize(
    ("step", "rate"),
    [  # S = 7600, so W = 760: peak t/W before, 0.1 peak + 0.45 peak (1 + cos(pi (t - W) / 6840)) from then on
        (1, 2e-3 / 760),
        (380, 1e-3),
        (759, 2e-3 * 759 / 760),
        (760, 2e-3),
        (760 + 1710, 2e-4 + 9e-4 * (1 + math.sqrt(0.5))),
        (760 + 3420, 1.1e-3),
        (760 + 4560, 2e-4 + 9e-4 * 0.5),
        (7600, 2e-4),
    ],
)
def test_schedule_of_the_paper(step, rate):
    assert optim.learning_rate(step, 7600, 2e-3, PAPER) == pytest.approx(rate, rel=1e-12)


def test_schedule_ends_exactly_and_may_lack_a_warm_up():
    assert optim.learning_rate(120, 120, 1e-2, PAPER) == 0.1 * 1e-2
    flat = Schedule(warmup=0, final=0.1)
    assert optim.learning_rate(1, 4, 1.0, flat) == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi / 4)))
    assert optim.learning_rate(4, 4, 1.0, Schedule(warmup=1, final=0.1)) == 0.1


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0]))
        self.static = nn.Parameter(torch.tensor([3.0]))


def test_adamw_step_equals_the_formula_in_its_groups():
    model = Toy()
    settings = Optimizer(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)
    assert optim.decay_groups(model, ("static",)) == {"decay": ["weight"], "no_decay": ["static"]}
    optimizer = optim.AdamW(model, ("static",), settings)
    expected = {"weight": torch.tensor([1.0, -2.0]).double(), "static": torch.tensor([3.0]).double()}
    m = {n: torch.zeros_like(v) for n, v in expected.items()}
    v = {n: torch.zeros_like(x) for n, x in expected.items()}
    for t in (1, 2, 3):
        for name, parameter in model.named_parameters():
            g = torch.full_like(parameter, 0.1 * t)
            parameter.grad = g
            m[name] = 0.9 * m[name] + 0.1 * g.double()
            v[name] = 0.95 * v[name] + 0.05 * g.double() ** 2
            decay = 0.1 if name == "weight" else 0.0
            expected[name] = expected[name] * (1 - 0.01 * decay)
            expected[name] -= 0.01 * (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.95**t)).sqrt() + 1e-8)
        optimizer.step(0.01)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.double(), expected[name], rtol=1e-6, atol=0)
    saved = optimizer.moments()
    torch.testing.assert_close(saved["exp_avg.weight"].double(), m["weight"], rtol=1e-6, atol=0)
    torch.testing.assert_close(saved["exp_avg_sq.static"].double(), v["static"], rtol=1e-6, atol=0)


def test_steps_are_those_of_pytorchs_own_class_to_the_bit():
    """Also across a restore, and where a parameter has no gradient."""
    settings = Optimizer(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)
    model, theirs = Toy(), Toy()
    groups = [{"params": [theirs.weight]}, {"params": [theirs.static], "weight_decay": 0.0}]
    public = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    optimizer = optim.AdamW(model, ("static",), settings)
    for t in range(1, 5):
        for toy in (model, theirs):
            toy.weight.grad = torch.tensor([0.3, -0.7]) * t
            toy.static.grad = torch.tensor([0.01 * t]) if t != 2 else None
        for group in public.param_groups:
            group["lr"] = 0.01 / t
        public.step()
        optimizer.step(0.01 / t)
        again = optim.AdamW(model, ("static",), settings)
        again.restore({name: value.clone() for name, value in optimizer.moments().items()})
        optimizer = again
    assert torch.equal(model.weight, theirs.weight)
    assert torch.equal(model.static, theirs.static)
    saved = optimizer.moments()
    for name, parameter in theirs.named_parameters():
        for key, value in public.state[parameter].items():
            assert torch.equal(saved[f"{key}.{name}"], value)


def test_training_does_not_import_the_compiler():
    code = (
        "import sys, torch\nfrom depthbench import optim, train\nfrom depthbench.bench.train import SETTINGS\n"
        "model = torch.nn.Linear(2, 1)\noptimizer = optim.AdamW(model, (), SETTINGS)\n"
        "model(torch.ones(1, 2)).sum().backward()\ntorch.nn.utils.get_total_norm([model.weight.grad])\n"
        "optimizer.step(0.1)\noptimizer.zero_grad()\nassert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_no_parameter_has_is_an_error():
    """It would decay unnoticed."""
    with pytest.raises(ValueError, match="no_decay: statik is the last part of no parameter's name"):
        optim.decay_groups(Toy(), ("static", "statik"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_those_of_pytorchs_class(dtype):
    """bfloat16 weights as the authors': each operation is rounded by itself, not the whole step once."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randn(64, 32, generator=generator)  # noqa: E731
    ours, theirs = (nn.Linear(32, 64, bias=False) for _ in range(2))
    first = 0.02 * draw()
    for model in (ours, theirs):
        model.weight = nn.Parameter(first.to(dtype))
    one_pass = dtype == torch.float32
    theirs_too = torch.optim.AdamW(
        theirs.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=one_pass, foreach=not one_pass
    )
    own = optim.AdamW(ours, (), Optimizer(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0))
    for _ in range(20):
        gradient = draw().to(dtype)
        ours.weight.grad, theirs.weight.grad = gradient.clone(), gradient.clone()
        own.step(2e-3)
        theirs_too.step()
    assert torch.equal(ours.weight, theirs.weight)


def test_bfloat16_weights_do_not_decay_as_in_the_authors_recipe():
    """A factor 1 - 2e-4 is less than half a spacing of bfloat16: rounded by itself it is 1."""
    model = nn.Linear(32, 64, bias=False).bfloat16()
    before = model.weight.detach().float().clone()
    own = optim.AdamW(model, (), Optimizer(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0))
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        model.weight.grad = torch.randn(64, 32, generator=generator).bfloat16()
        own.step(2e-3)
    after = model.weight.detach().float()
    assert (after * before).sum() / before.square().sum() > 0.98  # float32: (1 - 2e-4)^300 = 0.94

"""How long a training step takes, as a ratio to Pre-LN: `pytest -m perf`, on an idle machine."""

import pytest
import torch

from depthbench.bench import train
from depthbench.schema import Precision

CPU = torch.device("cpu")


@pytest.mark.perf
@pytest.mark.parametrize("threads", [1, 2])
def test_mhc_takes_at_most_two_and_a_half_times_as_long_as_preln(threads):
    """The design with the most small operations, at the demo's deepest shape."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    model = {"n_layers": 16, "d_model": 28, "n_heads": 2, "vocab_size": 512}
    found = train.line("mhc", train.Shape(model, 128, 8, Precision(master=None, compute="float32")), 20, CPU)
    torch.set_num_threads(before)
    assert found["ratio"] < 2.5

"""The Triton kernels on a GPU, outputs and gradients, against the float32 reference. Not run yet: no GPU was there."""

import pytest
import torch

from depthbench.bench.kernels import wrong
from depthbench.bench.operations import OPERATIONS, Size

OURS = ("add_norm pre", "add_norm sandwich", "add_norm keel", "add_norm post", "depth_mix", "mixing")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("width", "sources"), [(640, 141), (544, 169), (1216, 33)])
@pytest.mark.parametrize("name", [*OURS, "hc_boundary", "mhc_boundary"])
def test_a_kernel_is_its_reference(name, width, sources, dtype):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    size = Size(67, width, sources, torch.device("cuda"), dtype)
    operation = OPERATIONS[name](size)
    assert wrong(operation.functions["triton"], operation, size) is None

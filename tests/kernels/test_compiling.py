"""Every kernel compiles for the GPUs of clusters, with the arguments of its launches; no device is needed.

In a process of its own, on CPU tensors: a launch compiles and runs nothing. One kernel serves any number of sources.
"""

import collections
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}  # of a program, A100 and H100 (CUDA programming guide)


def launches(capability):
    """Compile what WORK launches; return (work, kernel, hash of the binary, bytes of shared memory) of each."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import JITFunction, driver

    from depthbench_kernels import _triton

    class Device:
        get_current_device = get_current_stream = staticmethod(lambda *_: 0)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", capability, 32))

    driver.set_active(Device())
    run, found = JITFunction.run, []

    def compile_only(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found.append((work.__name__, self.__name__, kernel.hash, kernel.metadata.shared))
        return kernel

    JITFunction.run = compile_only
    _triton.check = lambda *_: None
    for work in WORK:
        work(torch)
    return found


def norms(torch):
    from depthbench_kernels.norms import triton

    x, gain = torch.ones(4, 1216, dtype=torch.bfloat16, requires_grad=True), torch.ones(1216, requires_grad=True)
    for mode in ("pre", "sandwich", "keel", "post"):
        x_new, y = triton.add_norm(x, x, gain, gain2=gain, eps=1e-6, mode=mode, alpha=2.0)
        (x_new.sum() + y.sum()).backward()
    triton.rms_norm(x, gain, eps=1e-6).sum().backward()


def depth_mix(torch):
    from depthbench_kernels.depth_mix import triton

    x, gain = torch.ones(4, 1216, dtype=torch.bfloat16, requires_grad=True), torch.ones(1216, requires_grad=True)
    for n_sources in (1, 2, 16):
        triton.depth_mix([x] * n_sources, gain, gain, eps=1e-6).sum().backward()


def workspace(torch):
    from depthbench_kernels.depth_mix import triton

    x, gain = torch.ones(4, 1216, dtype=torch.bfloat16, requires_grad=True), torch.ones(1216, requires_grad=True)
    ws, y = triton.Workspace(x, torch.ones(34, 1216, requires_grad=True), eps=1e-6), x
    for _ in range(34):
        y = ws.consume(y, gain)
    y.sum().backward()


# What runs, the number of its kernels, and how many variants of one kernel it may need: five modes of norms, with
# and without a gradient of the stream; in a workspace the last group has nothing pulled for it.
WORK = {norms: (2, 5), depth_mix: (2, 1), workspace: (5, 2)}


@pytest.mark.parametrize("capability", [80, pytest.param(90, marks=pytest.mark.slow)])
def test_kernels_compile_once(capability, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, __file__, str(capability)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    binaries = collections.defaultdict(lambda: collections.defaultdict(set))
    for work, name, binary, shared in json.loads(done.stdout):
        binaries[work][name].add(binary)
        assert shared <= SHARED_BYTES[capability], name
    for work, (kernels, variants) in WORK.items():
        found = binaries[work.__name__]
        assert len(found) == kernels, found
        assert max(map(len, found.values())) <= variants, found


if __name__ == "__main__":
    print(json.dumps(launches(int(sys.argv[1]))))

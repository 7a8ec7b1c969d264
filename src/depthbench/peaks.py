"""Peak speed of devices, by the exact name that PyTorch gives them; no torch here.

Dense bfloat16 [FLOP/s] by the maker's data sheets. A device that is not listed has no peak, and so no MFU.
"""

PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989.5e12,
    "NVIDIA H200": 989.5e12,
}
# for plans, which are made before there is a device
SHORT = {"A100": "NVIDIA A100-SXM4-40GB", "H100": "NVIDIA H100 80GB HBM3", "H200": "NVIDIA H200"}


def peak(device: str) -> float | None:
    """Return the peak of a device as records name it ("cuda: NVIDIA H200"), None where it is not known."""
    return PEAKS.get(device.removeprefix("cuda: "))

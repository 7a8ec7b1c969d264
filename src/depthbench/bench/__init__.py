"""Benchmarks: `depthbench bench kernels | train | prefill | cpu`, one JSON line per case.

Each module yields its lines as they are measured; `protocol` is how all of them measure.
"""

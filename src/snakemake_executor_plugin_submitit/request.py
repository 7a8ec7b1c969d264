"""From a job's resources to what submitit asks for. Names and meaning are those of the stock Slurm plugin.

`gpu` counts the GPUs of the whole job, `mem_mb` is the memory of each node (Slurm's --mem), `runtime` is in minutes.
"""

import shlex
from collections.abc import Mapping
from typing import Any

MINUTES = 60  # of a job without `runtime`
# One task on the first node runs Snakemake; steps that it starts share its resources instead of waiting for them.
# srun does not take the number of cores over from the job: it would bind the task to one.
STEP = ["--nodes=1", "--ntasks=1", "--overlap", "--cpus-per-task={cores}"]
WORDS = {"slurm_partition": "partition", "slurm_account": "account", "constraint": "constraint", "qos": "qos"}
# Obeyed by the stock plugin, not here: to pass over them would run the job without what it needs.
FOREIGN = {
    "clusters": "--clusters=",
    "cpus_per_gpu": "--cpus-per-gpu=",
    "cpus_per_task": "threads of the rule",
    "gres": "--gres=",
    "mem_mb_per_cpu": "mem_mb",
    "mpi": "srun in the rule's command",
    "tasks": "nodes, and srun in the rule's command",
}


class RequestError(ValueError):
    """A resource that cannot be asked for."""


def slurm(name: str, resources: Mapping[str, Any], signal_delay: int) -> dict[str, Any]:
    """Return the parameters of submitit's Slurm executor."""
    for key, instead in FOREIGN.items():
        if resources.get(key):
            known = f'slurm_extra="{instead}..."' if instead.startswith("--") else instead
            raise RequestError(f"resource {key}={resources.get(key)} is not known here; use {known}")
    nodes, cores = _count(resources, "nodes", 1, least=1), _count(resources, "_cores", 1, least=1)
    asked: dict[str, Any] = {
        "job_name": name,
        "time": _count(resources, "runtime", MINUTES, least=1),
        "nodes": nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": cores,
        "signal_delay_s": signal_delay,
        "stderr_to_stdout": True,
        "srun_args": [option.format(cores=cores) for option in STEP],
        "additional_parameters": extra(str(resources.get("slurm_extra") or "")),
    }
    if "no-requeue" not in asked["additional_parameters"]:
        asked["additional_parameters"]["requeue"] = True  # some sites do not unless asked
    if memory := _count(resources, "mem_mb", 0):
        asked["mem"] = f"{memory}MB"
    if gpus := _gpus(resources):
        if gpus % nodes:
            raise RequestError(f"gpu={gpus} does not divide over nodes={nodes}")
        asked["gres"] = ":".join(filter(None, ["gpu", str(resources.get("gpu_model") or ""), str(gpus // nodes)]))
    return asked | {option: resources.get(key) for key, option in WORDS.items() if resources.get(key)}


def local(resources: Mapping[str, Any], signal_delay: int) -> dict[str, Any]:
    """Return the parameters of submitit's local executor."""
    nodes = _count(resources, "nodes", 1, least=1)
    if nodes > 1:
        raise RequestError(f"nodes={nodes}, but this machine is one")
    return {
        "timeout_min": _count(resources, "runtime", MINUTES, least=1),
        "tasks_per_node": 1,
        "gpus_per_node": _gpus(resources),
        "signal_delay_s": signal_delay,
        "stderr_to_stdout": True,
    }


def last_minutes(resources: Mapping[str, Any]) -> int | None:
    """Return the limit of a job that keeps nothing (`resumable: 0`): it must end within it. None: it may go on."""
    return None if _count(resources, "resumable", 1) else _count(resources, "runtime", MINUTES, least=1)


def extra(options: str) -> dict[str, Any]:
    """Return the long options of `slurm_extra` (`--exclusive --mail-type=END`) by name."""
    found: dict[str, Any] = {}
    for word in shlex.split(options):
        name, _, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise RequestError(f"slurm_extra={options!r}: {word!r} is not of the form --option or --option=value")
        found[name] = value if "=" in word else True
    return found


def _gpus(resources: Mapping[str, Any]) -> int:
    return _count(resources, "gpu", 1 if resources.get("gpu_model") else 0)


def _count(resources: Mapping[str, Any], key: str, default: int, least: int = 0) -> int:
    value = resources.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or value < least:
        raise RequestError(f"{key}={value!r} is not a whole number of at least {least}")
    return value

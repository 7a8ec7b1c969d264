"""`python -m depthbench.launch train ...`: the command `depthbench train ...` in as many processes as there are GPUs.

One GPU, or none: the command itself, in this very process. N GPUs: N processes, and this one watches over them. In a
Slurm job of several nodes: `srun` starts this on each of them. The processes find each other by the variables that
`torchrun` sets. `torchrun` itself is not used: it moves its processes out of the group that signals are sent to, a
second signal during its shutdown leaves them alone in the middle of a checkpoint, and their exit status is lost.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from depthbench.errors import UserError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
SECONDS_TO_FOLLOW = 30  # that the others have to leave in, once one has
FIRST_PORT, PORTS = 20000, 10000  # below those that systems give to outgoing connections


def main() -> None:
    """Run the command line; the status is that of the first process that did not end well."""
    parser = argparse.ArgumentParser("python -m depthbench.launch", description="Train on all GPUs of this job.")
    parser.add_argument("--ranks", type=int, help="processes on each node; default: its GPUs, one without any")
    parser.add_argument("--most", type=int, help="GPUs to take at most, over all nodes; 0: one process")
    parser.add_argument("command", choices=["train"], help="of depthbench")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of that command")
    asked = parser.parse_args()
    # What is sent before a process can save is lost instead of deadly: it will come again.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        if asked.most != 0:  # a run that wants no GPU is one process, in an allocation of many nodes, too
            if to_spread(os.environ):
                spread(sys.argv[1:])
            ranks = ranks_here(asked.ranks, asked.most)
            if ranks * node_count(os.environ) > 1:
                raise SystemExit(watch([asked.command, *asked.arguments], ranks))
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    from depthbench import __main__ as depthbench

    sys.argv = [depthbench.__file__, asked.command, *asked.arguments]
    depthbench.main()


def ranks_here(asked: int | None, most: int | None = None) -> int:
    """Return the number of processes of this node: as asked for, else what Slurm gave, else the GPUs, else one.

    `most` limits them: what the job wants of a machine or an allocation with more.

    Raises:
        UserError: E-GPU if PyTorch cannot use as many GPUs.
    """
    # training loads PyTorch anyway, in this process if it is the only one
    from torch.cuda import device_count

    from depthbench.device import REMEDY

    given, there = int(os.environ.get("SLURM_GPUS_ON_NODE", "0")), device_count()
    if asked is None and there < given:
        raise UserError("E-GPU", f"Slurm gave {given} GPUs, PyTorch can use {there}; {REMEDY}")
    free = given or there
    if most is not None:
        free = min(free, most // node_count(os.environ))
    ranks = asked if asked is not None else free or 1
    if ranks < 1 or 0 < there < ranks:
        remedy = f"ask for {there} or fewer" if ranks > 1 else "ask for one or more"
        raise UserError("E-GPU", f"{ranks} processes asked for, PyTorch can use {there} GPUs; {remedy}")
    return ranks


def node_count(environment: Mapping[str, str]) -> int:
    """Return the number of nodes of the Slurm job, 1 outside."""
    return int(environment.get("SLURM_JOB_NUM_NODES", "1"))


def to_spread(environment: Mapping[str, str]) -> bool:
    """Whether the job has several nodes, and this is not yet the step that runs on all of them."""
    return 1 < node_count(environment) != int(environment.get("SLURM_STEP_NUM_NODES", "1"))


def spread(arguments: list[str]) -> NoReturn:
    """Become `srun`, which runs this program once on each node of the job."""
    nodes, cpus = os.environ["SLURM_JOB_NUM_NODES"], os.environ.get("SLURM_CPUS_PER_TASK")
    command = ["srun", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    command += ["--kill-on-bad-exit=1"]
    if cpus:  # a step does not inherit it
        command += [f"--cpus-per-task={cpus}"]
    # The binding to the CPUs of this node, which srun would take for that of all nodes.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_CPU_BIND", "SLURM_MEM_BIND"))}
    sys.stdout.flush()
    os.execvpe("srun", [*command, sys.executable, "-m", "depthbench.launch", *arguments], environment)


def watch(arguments: list[str], ranks: int) -> int:
    """Start the processes of this node and return the status of the first that did not end well, else 0.

    Signals go on to all of them. Once one has failed, the others leave by themselves or are killed.
    """
    command = [sys.executable, "-m", "depthbench", *arguments]
    running: set[int] = set()

    def send(number: int) -> None:
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    # Signals wait until the processes are there to take them.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for variables in environments(ranks):
        running.add(os.posix_spawn(sys.executable, command, os.environ | variables, setsigmask=()))
    for number in STOP_SIGNALS:
        signal.signal(number, lambda received, _: send(received))
    signal.signal(signal.SIGALRM, lambda *_: send(signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    status = 0
    while running:
        pid, ended = os.wait()
        running.discard(pid)
        code = os.waitstatus_to_exitcode(ended)
        if code and not status:
            status = code if code > 0 else 128 - code  # as a shell has it
            signal.alarm(SECONDS_TO_FOLLOW)
    return status


def environments(ranks: int) -> list[dict[str, str]]:
    """Return what each process of this node has to know of the others."""
    nodes = node_count(os.environ)
    if nodes > 1:
        job, step = int(os.environ["SLURM_JOB_ID"]), int(os.environ["SLURM_STEP_ID"])
        node, address, port = int(os.environ["SLURM_NODEID"]), _first_address(), FIRST_PORT + (17 * job + step) % PORTS
    else:
        node, address, port = 0, "127.0.0.1", _free_port()
    shared = {
        "WORLD_SIZE": str(ranks * nodes),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, _cpus() // ranks)),
    }
    return [shared | {"LOCAL_RANK": str(i), "RANK": str(node * ranks + i)} for i in range(ranks)]


def _cpus() -> int:
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(bound, int(os.environ.get("SLURM_CPUS_ON_NODE", bound)))


def _free_port() -> int:
    """Return a port that nobody listens on; launchers of one machine begin to look at different ones."""
    for offset in range(PORTS):
        port = FIRST_PORT + (os.getpid() + offset) % PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise UserError("E-GPU", f"no free port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}; end what listens there")


def _first_address() -> str:
    """Return the address of the first node of this step, as Slurm itself reaches it."""
    hosts = ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]
    host = subprocess.run(hosts, capture_output=True, text=True, check=True).stdout.split()[0]
    about = ["scontrol", "--oneliner", "show", "node", host]
    text = subprocess.run(about, capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bNodeAddr=(\S+)", text)
    return found[1] if found else host


if __name__ == "__main__":
    main()

"""A real Slurm on this machine: munged, slurmctld and two slurmd in one private folder, as any user, without cgroups.

Jobs, signals, limits, requeueing, gres and constraints are Slurm's own; memory, cores and GPUs are booked only.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
NODES = ("n1", "n2")
SECONDS_TO_START = 30

SETTINGS = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# cred_expire is also how long a requeued job waits
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,defer_batch
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=10
MinJobAge=600
DefMemPerCPU=1000
GresTypes=gpu
NodeName=DEFAULT CPUs=64 RealMemory=512000 Gres=gpu:a100:4
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} Feature=big
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} Feature=small
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE DefaultTime=10
PartitionName=other Nodes=n1,n2 MaxTime=INFINITE DefaultTime=10
"""


def missing():
    """Return the programs of Slurm that this machine lacks."""
    return [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]


class Cluster:
    """A started cluster; commands find it by SLURM_CONF."""

    def __init__(self, folder):
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}

    def run(self, *command, check=True):
        """Run one of Slurm's commands and return what it prints."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, (command, done.stderr)
        return done.stdout

    def which(self, tool):
        return shutil.which(tool, path=PATH)

    def queue(self):
        """Return the ids of the jobs that wait, run or are being ended."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def show(self, job_id):
        """Return what Slurm knows of a job."""
        words = self.run("scontrol", "--oneliner", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def start(self):
        """Start the daemons and wait for idle nodes."""
        folder, ports = self.folder, _free_ports(3)
        host = socket.gethostname().split(".")[0]
        folder.chmod(0o755)  # munge insists
        for name in ("state", *(f"spool/{node}" for node in NODES)):
            (folder / name).mkdir(parents=True)
        text = SETTINGS.format(host=host, ports=ports, user=_user(), folder=folder)
        (folder / "slurm.conf").write_text(text)
        for number in range(4):
            (folder / f"gpu{number}").symlink_to("/dev/null")  # gres wants character devices
        (folder / "gres.conf").write_text(f"Name=gpu Type=a100 File={folder}/gpu[0-3]\n")
        version = self.run("slurmd", "-V").split()[1]
        # no plugin above uses cgroups, but slurmd loads its layer; v1 looks at nothing, later ones can be told not to
        plugin = "cgroup/v1" if version.startswith("22.") else "disabled"
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        self.run(
            *("munged", f"--key-file={key}", f"--socket={folder}/munge.sock", f"--pid-file={folder}/munged.pid"),
            *(f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"),
        )
        self.run("slurmctld", "-f", str(folder / "slurm.conf"))
        for node in NODES:
            self.run("slurmd", "-N", node, "-f", str(folder / "slurm.conf"))
        end = time.monotonic() + SECONDS_TO_START
        while set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False).split()) != set(NODES):
            assert time.monotonic() < end, (folder / "slurmctld.log").read_text()[-3000:]
            time.sleep(0.1)

    def stop(self):
        """Kill the jobs that are left, and end the daemons by their ids."""
        left = self.run("squeue", "--noheader", "--format=%i", check=False).split()
        if left:
            self.run("scancel", "--full", "--signal=KILL", *left, check=False)
            self.run("scancel", *left, check=False)
            self.wait_until_empty()
        for name in (*(f"slurmd.{node}" for node in NODES), "slurmctld", "munged"):
            _end(self.folder / f"{name}.pid")

    def wait_until_empty(self, seconds=30):
        """Wait until no job is left."""
        end = time.monotonic() + seconds
        while self.queue():
            assert time.monotonic() < end, self.run("squeue")
            time.sleep(0.1)


def _user():
    return subprocess.check_output(["id", "-un"], text=True).strip()


def _free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _end(pid_file: Path):
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return
    for _ in range(100):
        if _gone(pid):
            return
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _gone(pid):
    """Whether a process has ended; one that nobody has waited for is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True

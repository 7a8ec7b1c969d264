"""The main process may itself run inside a job: what describes that job must not reach the jobs it submits.

An inherited SBATCH_PARTITION wins over what a job asks for, an inherited SLURM_CPU_BIND binds all ranks to the
caller's cores, an inherited SQUEUE_STATES hides jobs from the listing.
"""

import os

PREFIXES = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SCONTROL_"),
    *("PMI_", "PMIX_", "SUBMITIT_"),
)
RANKS = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
# how to reach the cluster, the same inside and outside of a job
KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"}


def forget_caller() -> None:
    """Remove the variables of the job that this process runs in from its environment."""
    for name in list(os.environ):
        if (name.startswith(PREFIXES) or name in RANKS) and name not in KEPT:
            del os.environ[name]

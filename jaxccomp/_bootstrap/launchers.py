"""Detects the launcher that started this process as a rank, from the environment alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The launcher of this process, and the ranks that it has set.

    Attributes:
      name: the launcher's name.
      rank: this process's rank.
      size: number of ranks; None if the launcher does not set it.
      local_rank: rank of this process on its host, if the launcher sets it.
      local_size: number of ranks on its host, if the launcher sets it.
    """

    name: str
    rank: int
    size: int | None
    local_rank: int | None = None
    local_size: int | None = None


# Launchers, most specific first: (name, variables of rank, size, local rank and local size). Slurm
# sets SLURM_PROCID in batch scripts too, which are not launched as ranks; only a step sets the
# number of tasks.
_TABLE = (
    ("jaxccomp", "JAXCCOMP_RANK", "JAXCCOMP_SIZE", "JAXCCOMP_LOCAL_RANK", "JAXCCOMP_LOCAL_SIZE"),
    (
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI (MPICH, Intel MPI, Slurm)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMIx", "PMIX_RANK", "", "", ""),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)


def launcher(environ: Mapping[str, str] = os.environ) -> Launcher | None:
    """Return the launcher that started this process; None without one."""
    for name, rank, size, *local in _TABLE:
        if rank in environ and (not size or size in environ):
            found = (int(environ[each]) if each in environ else None for each in (size, *local))
            return Launcher(name, int(environ[rank]), *found)
    return None

"""Who started this process as a rank, told from the environment alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Launcher:
    """What the environment says about who started this process.

    Attributes:
      name: of the launcher.
      rank: of this process.
      size: how many ranks there are; None when the launcher does not say.
      local_rank: number of this process among those of its host, if the launcher says.
      local_size: how many ranks its host has, if the launcher says.
    """

    name: str
    rank: int
    size: int | None
    local_rank: int | None = None
    local_size: int | None = None


# Launchers, most specific first: (name, variables of rank, size, local rank and local size). Slurm
# sets SLURM_PROCID in batch scripts too, where nothing was launched; only inside a step are there
# tasks to count.
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
    """The launcher that started this process; None when it was started by hand."""
    for name, rank, size, *local in _TABLE:
        if rank in environ and (not size or size in environ):
            found = (int(environ[each]) if each in environ else None for each in (size, *local))
            return Launcher(name, int(environ[rank]), *found)
    return None

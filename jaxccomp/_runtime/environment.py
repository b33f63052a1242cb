"""Reads from the environment whether, and how, this process can start as a rank.

The launcher's variables give the rank. A child process of a rank inherits them, but must not join
as the same rank. This module also checks that MPI has enough space in /dev/shm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import sys
import time
import zlib
from collections.abc import Mapping

from jaxccomp import errors


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The launcher of this process, and the ranks that it set.

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


PMIX = "PMIx"
SLURM = "Slurm"  # without a PMI: only Slurm's own variables give the rank
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
    (PMIX, "PMIX_RANK", "", "", ""),
    (SLURM, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)


def launcher(environ: Mapping[str, str] = os.environ) -> Launcher | None:
    """Return the launcher that started this process; None without one."""
    for name, rank, size, *local in _TABLE:
        if rank in environ and (not size or size in environ):
            found = (int(environ[each]) if each in environ else None for each in (size, *local))
            return Launcher(name, int(environ[rank]), *found)
    return None


# --- Inherited variables --------------------------------------------------------------------------
# For example, ``multiprocessing`` with "spawn" imports the main program again in a data loader's
# worker. The worker then calls ``jaxccomp.init()`` and would join as the same rank a second time.

# Set by a rank when it joins: its pid, and a checksum of its launcher's variables. If a rank starts
# another launcher, that launcher's ranks have other variables.
MARK = "JAXCCOMP_RANK_PROCESS"
_IDENTITY = (
    "JAXCCOMP_RUN",
    "JAXCCOMP_RANK",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMI_RANK",
    "PMI_ID",
    "PMI_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
)
_CONNECTION = "PMI_FD"  # the number of the descriptor over which PMI talks to mpiexec


def mark_rank() -> None:
    """Set the variable by which child processes detect that they are not ranks."""
    os.environ[MARK] = f"{os.getpid()} {_identity(os.environ)}"


def check_not_inherited(*, uses_variables: bool, starts_mpi: bool) -> None:
    """Raise if this process has inherited the variables of the rank that started it.

    Args:
      uses_variables: whether environment variables give this process's rank, or the group to join.
      starts_mpi: whether this process would initialise MPI.

    Raises:
      InitializationError: with the remedy.
    """
    if why := why_no_rank(os.environ, uses_variables=uses_variables, starts_mpi=starts_mpi):
        alone = 'jaxccomp.init(mpi="never", coordinator="")'
        raise errors.InitializationError(
            f"this process {why}. It is no rank and cannot join the job. Put jaxccomp.init(), and "
            'all communication, under `if __name__ == "__main__":`, which workers of '
            f"multiprocessing do not run. {alone} lets a helper process run alone."
        )


def why_no_rank(environ: Mapping[str, str], *, uses_variables: bool, starts_mpi: bool) -> str:
    """Return how this process has inherited a rank's variables; empty if it has not."""
    pid, _, identity = environ.get(MARK, "").partition(" ")
    by = launcher(environ)
    is_marked = pid.isdigit() and int(pid) != os.getpid()
    rank = "a rank" if by is None else f"rank {by.rank}"
    # The variables do not matter if the main program passes coordinator=, rank= and size=.
    if is_marked and _is_worker() and int(pid) == os.getppid():
        return f"is a worker that {rank} (process {pid}) has started with multiprocessing"
    if not uses_variables:
        return ""
    if is_marked and identity == _identity(environ):
        return f"was started by {rank} (process {pid}), and has inherited its variables"
    if by is not None and _is_worker():
        return f"is a worker of multiprocessing, and has inherited the variables of {rank}"
    if starts_mpi and by is not None and not _is_connected(environ):
        return (
            f"has inherited the variables of {rank}, but not the connection to mpiexec "
            f"({_CONNECTION}={environ[_CONNECTION]}), which an intermediate program has closed, "
            "such as subprocess without close_fds=False"
        )
    return ""


def _is_worker() -> bool:
    """Return whether ``multiprocessing`` has reimported the main program (spawn, forkserver)."""
    # multiprocessing.parent_process() is set only later.
    name = "__mp_main__"  # in other processes, an alias of a module named __main__
    return getattr(sys.modules.get(name), "__name__", "") == name


def _is_connected(environ: Mapping[str, str]) -> bool:
    return _CONNECTION not in environ or _inode(environ[_CONNECTION]) > 0


def _identity(environ: Mapping[str, str]) -> str:
    values = [environ.get(name, "") for name in _IDENTITY]
    # Descriptor numbers are reused; the inode identifies the socket.
    values.append(str(_inode(environ.get(_CONNECTION, ""))))
    return f"{zlib.crc32(repr(values).encode()):08x}"


def _inode(descriptor: str) -> int:
    """Return the inode of the socket with that descriptor; 0 if there is none."""
    try:
        status = os.fstat(int(descriptor))
    except (OSError, ValueError):
        return 0
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else 0


# --- Space in /dev/shm ----------------------------------------------------------------------------
# MPICH maps a file in /dev/shm and writes to it. If /dev/shm is full, the kernel ends the rank by
# SIGBUS without an error text.

SHARED_MEMORY = "/dev/shm"
_WRITE_UNCHECKED = ("MPICH", "Intel MPI")  # Open MPI reports missing space itself
_BYTES_PER_RANK = 1_060_000  # measured: written by MPICH 5 until MPI_Init ends
_FILES = "mpich_shm_"
_NEW_SECONDS = 60.0


def why_too_little_memory(
    vendor: str, ranks: int, *, starting: bool = False, folder: str = SHARED_MEMORY
) -> str:
    """Return why the ranks cannot start on this host; empty if no reason is known.

    Args:
      vendor: the MPI's name in mpi4py.
      ranks: the number of ranks on this host.
      starting: whether other ranks may already have created their files. If so, new files count as
        files of these ranks.
      folder: the folder of shared-memory files.
    """
    if vendor not in _WRITE_UNCHECKED:
        return ""
    needed = ranks * _BYTES_PER_RANK
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    free, size = (blocks * found.f_frsize for blocks in (found.f_bavail, found.f_blocks))
    if free + (_taken_lately(folder) if starting and free < needed else 0) >= needed:
        return ""
    return (
        f"{folder} has {free >> 10} KiB free of {size >> 10} KiB, and {vendor} needs about "
        f"{needed >> 10} KiB there for {ranks} {'ranks' if ranks > 1 else 'rank'} of a host: "
        f"they would end by SIGBUS. Remove files of killed jobs ({folder}/{_FILES}*), or enlarge "
        f"{folder} (for containers: docker run --shm-size=1g)"
    )


def _taken_lately(folder: str) -> int:
    """Return the bytes of files that MPICH created within the last minute."""
    total, since = 0, time.time() - _NEW_SECONDS
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if entry.name.startswith(_FILES) and status.st_ctime > since:
                total += 512 * status.st_blocks
    return total

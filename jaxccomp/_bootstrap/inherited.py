"""Detects child processes of a rank that have inherited its launcher's variables.

For example, ``multiprocessing`` with "spawn" imports the main program again in a data loader's
worker. The worker then calls ``jaxccomp.init()`` and would join as the same rank a second time.
"""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Mapping

from jaxccomp import errors
from jaxccomp._bootstrap import launchers

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
    """Sets the variable by which child processes detect that they are not ranks."""
    os.environ[MARK] = f"{os.getpid()} {_identity(os.environ)}"


def check(*, uses_variables: bool, starts_mpi: bool) -> None:
    """Raises if this process has inherited the variables of the rank that started it.

    Args:
      uses_variables: whether environment variables give its rank, or the group that it joins.
      starts_mpi: whether it would initialise MPI.

    Raises:
      InitializationError: with the remedy.
    """
    if why := why_no_rank(os.environ, uses_variables=uses_variables, starts_mpi=starts_mpi):
        alone = 'jaxccomp.init(mpi="never", coordinator="")'
        raise errors.InitializationError(
            f"this process {why}. It is no rank and cannot join the job. Put jaxccomp.init(), and "
            'all that communicates, under `if __name__ == "__main__":`, which workers of '
            f"multiprocessing do not run. {alone} makes a helper work alone."
        )


def why_no_rank(environ: Mapping[str, str], *, uses_variables: bool, starts_mpi: bool) -> str:
    """Return how this process has inherited a rank's variables; empty if it has not."""
    pid, _, identity = environ.get(MARK, "").partition(" ")
    by = launchers.launcher(environ)
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
            f"({_CONNECTION}={environ[_CONNECTION]}), which a program between closes, such as "
            "subprocess without close_fds=False"
        )
    return ""


def _is_worker() -> bool:
    """Return whether ``multiprocessing`` has reimported the main program (spawn, forkserver)."""
    # multiprocessing.parent_process() is set only later.
    name = "__mp_main__"  # elsewhere an alias of the module __main__
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

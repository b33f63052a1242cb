"""Whether MPI is CUDA-aware, and the agreement on messages that it moves from and to GPUs."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._bootstrap import mpi
from jaxccomp._bootstrap.peer_info import Share
from jaxccomp._native import engine

_ASKS = (
    "from mpi4py import MPI; from jaxccomp._native import engine; "
    "print('said:' + engine.load().why_mpi_is_not_cuda_aware())"
)
_MOST_SECONDS = 30


def why_not_cuda_aware() -> str:
    """Why the MPI that mpi4py loads takes no memory of GPUs; empty when it does.

    Where MPI has not been started in this process it is asked in another one, since only a library
    that has been started knows, and to start it is the program's own business.
    """
    if not mpi.installed():
        return "mpi4py is not installed"
    if not engine.available():
        return "it takes the engine to ask"
    if mpi.imported() is not None:
        return engine.load().why_mpi_is_not_cuda_aware()
    if by := mpi.launcher():
        return f"not asked under the mpiexec of {by.name} before init() starts MPI"
    return _ask()


@functools.cache
def _ask() -> str:
    command = [sys.executable, "-c", _ASKS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a process that starts MPI did not answer: {error}"
    for line in done.stdout.splitlines():
        if line.startswith("said:"):
            return line.removeprefix("said:")
    said = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return f"a process that starts MPI failed: {said}"


def agree(
    core: Any, share: Share, process: int, hosts: Sequence[int], timeout_seconds: float
) -> list[str]:
    """Tries messages between the GPUs of different hosts, and agrees between whom they are used.

    Called by all processes together, before any operation: what MPI makes when such a message is
    sent for the first time may wait for all of a GPU.

    Args:
      core: the native engine.
      share: gives every process the rows of all.
      process: this one's rank.
      hosts: by process, a number that those of one host share.
      timeout_seconds: how long the messages may take.

    Returns:
      By process, why messages between its GPUs and this one's are not moved so; empty where they
      are.

    Raises:
      InitializationError: when messages do not get through in time.
    """
    count, why = core.prepare_device_mpi()
    takes_part = [int(each) for (each,) in share((count,))]
    partners = [
        int(bool(count and other) and hosts[rank] != hosts[process])
        for rank, other in enumerate(takes_part)
    ]
    try:
        works, reasons = core.warm_up_device_mpi(takes_part, partners, timeout_seconds)
    except RuntimeError as error:
        raise errors.InitializationError(
            f"MPI says that it is CUDA-aware, but to try it failed: {error}. Set the option "
            "device_mpi_bytes to 0 (JAXCCOMP_DEVICE_MPI_BYTES=0) on all ranks to go on without."
        ) from error
    table = [list(map(int, row)) for row in share(works)]
    core.agree_on_device_mpi(table)

    def reason(rank: int) -> str:
        if hosts[rank] == hosts[process]:
            return "it is on this host; see the option device_ipc_bytes"
        if not count:
            return f"this rank takes no part: {why}"
        if not takes_part[rank]:
            return "it takes no part; jaxccomp.comm.why_no_device_mpi() says why there"
        if reasons[rank]:
            return reasons[rank]
        return "" if table[rank][process] else "messages from here did not arrive there as sent"

    return [reason(rank) for rank in range(len(takes_part))]

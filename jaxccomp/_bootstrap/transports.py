"""Selects the transport between processes: MPI or UCX."""

from __future__ import annotations

from typing import Any

from jaxccomp import config, errors
from jaxccomp._bootstrap import ucx
from jaxccomp._bootstrap.peer_info import Share
from jaxccomp._bootstrap.world import World


def agree_on_ucx(state: World, share: Share) -> Any | None:
    """Return this process's UCX worker; None if the transport is MPI, or there is none.

    With several processes and no transport, sets ``state.unreachable`` to the reason.

    Args:
      state: of this process, with the agreed planner.
      share: an allgather of rows of integers.

    Raises:
      InitializationError: on all ranks, if the option or profile needs UCX, and a rank lacks it.
    """
    option = config.get("transport")
    if state.processes == 1 or (state.mpi is not None and _with_mpi(state, option) == "mpi"):
        return None
    worker, why_not = None, 'the option transport is "mpi"'
    if option != "mpi":
        worker, why_not = ucx.open_worker(shares_memory=True)
    opened = [int(row[0]) for row in share((int(worker is not None),))]
    lacking = ucx.who_lacks(opened, why_not)
    if not lacking:
        state.unreachable = ""
        return worker
    if option == "ucx":
        raise errors.InitializationError(
            f'the option transport is "ucx", but {lacking}. {ucx.INSTALL}.'
        )
    if state.mpi is not None:
        raise errors.InitializationError(
            f"the profile was measured over UCX, but {lacking}. {ucx.INSTALL}. The option "
            'transport="mpi" goes by the profile all the same, over MPI.'
        )
    state.unreachable = why_unreachable(state.processes, lacking)
    return None


def _with_mpi(state: World, option: str) -> str:
    """Resolve the option for processes that have joined by MPI."""
    if option != "auto":
        return option
    return "ucx" if state.planner is not None and state.planner.transport == "ucx" else "mpi"


def why_unreachable(processes: int, why: str) -> str:
    """Return the error text for processes of ``jax.distributed`` without a transport."""
    return (
        f"jax.distributed has joined {processes} processes, which meet over its store, but values "
        f"of the engine do not travel between them: {why}. They travel through UCX, which "
        "`pip install 'jaxccomp[ucx]'` brings to each of them and which needs no MPI; or through "
        f"MPI, after `pip install 'jaxccomp[mpich]'` and a start with `mpiexec -n {processes} "
        'python ...`. Or use axis_name= with backend="xla", which needs neither.'
    )

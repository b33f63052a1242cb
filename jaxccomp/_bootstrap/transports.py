"""What carries the engine's values between processes: MPI, or UCX."""

from __future__ import annotations

from typing import Any

from jaxccomp import config, errors
from jaxccomp._bootstrap import ucx
from jaxccomp._bootstrap.peer_info import Share
from jaxccomp._bootstrap.world import World


def agree_on_ucx(state: World, share: Share) -> Any | None:
    """This process's worker of UCX; None where MPI carries values, or nothing does.

    Where nothing does though there are other processes, ``state.unreachable`` says why.

    Args:
      state: with what all processes choose by.
      share: gives all rows of integers for this process's own.

    Raises:
      InitializationError: on all ranks, where UCX is to carry values, and one of them lacks it.
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
    """What an option means to processes that MPI has joined."""
    if option != "auto":
        return option
    return "ucx" if state.planner is not None and state.planner.transport == "ucx" else "mpi"


def why_unreachable(processes: int, why: str) -> str:
    """What processes of ``jax.distributed`` are told that nothing carries values between."""
    return (
        f"jax.distributed has joined {processes} processes, which meet over its store, but values "
        f"of the engine do not travel between them: {why}. They travel through UCX, which "
        "`pip install 'jaxccomp[ucx]'` brings to each of them and which needs no MPI; or through "
        f"MPI, after `pip install 'jaxccomp[mpich]'` and a start with `mpiexec -n {processes} "
        'python ...`. Or use axis_name= with backend="xla", which needs neither.'
    )

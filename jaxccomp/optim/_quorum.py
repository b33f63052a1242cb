"""Outer steps of a quorum: late ranks take part in the next step."""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxccomp import comm as _comm
from jaxccomp import errors
from jaxccomp.ops import bcast
from jaxccomp.optim._outer import Outer, check_alike
from jaxccomp.optim._states import PER_RANK, OuterState, QuorumState, require_floating

# --- Participants of a step -----------------------------------------------------------------------


class Participants(NamedTuple):
    """The participants of a step.

    Attributes:
      comm: the participants' communicator.
      done: the maximum of the steps that each participant has done.
      root: the lowest rank that has done this maximum.
      some_behind: whether a participant has done fewer.
    """

    comm: _comm.Communicator
    done: int
    root: int
    some_behind: bool


def participants(
    comm: _comm.Communicator | None,
    name: str,
    done: int,
    fraction: float,
    grace_seconds: float,
    wait_for_all: bool,
    timeout_seconds: float | None,
) -> Participants:
    """Agree on the participants of the next step; all participants get the same result.

    Waits for a quorum, then up to ``grace_seconds`` for the other members.

    Args:
      comm: the communicator; None: the world.
      name: names the sequence of steps; the same on all members.
      done: the number of these steps that this process has done.
      fraction: the fraction of members that is a quorum; at least a majority.
      grace_seconds: how long to wait for the other members once there is a quorum.
      wait_for_all: whether this process wants all members to take part.
      timeout_seconds: how long to wait for a quorum. Default: the option ``timeout_seconds``.

    Raises:
      CommunicatorError: unless the processes called ``jaxccomp.init(coordinator=...)``.
      InitializationError: if there was no quorum in time, or a member has failed.
    """
    comm = _comm.resolve(comm)
    minimum = max(math.ceil(fraction * comm.size), comm.size // 2 + 1)
    rule = (minimum, grace_seconds)
    found = _comm.participants(comm, name, done, rule, wait_for_all, timeout_seconds)
    processes = tuple(comm.processes[rank] for rank in found.members)
    # The same name for the same members avoids a recompilation. A failure changes the name: only
    # some members may have launched an operation on the old communicator.
    own = f"{name}-{zlib.crc32(repr(processes).encode()):08x}.{found.failures}"
    group = _comm.resolve(_comm.Communicator(f"{comm.name}/{own}", processes, comm.order))
    root = found.members.index(found.up_to_date[0])
    return Participants(group, found.done, root, len(found.up_to_date) < len(processes))


# --- Outer steps with late members ----------------------------------------------------------------


class Quorum:
    """Outer steps that wait for late ranks only for a limited time.

    An outer step waits for all ranks, but at most ``grace_seconds`` after a quorum has arrived.
    Then the ranks that have arrived do the step, with the mean over these ranks. A late rank takes
    part in the next step: an up-to-date rank sends it the newest outer parameters and the state of
    the outer optimiser, and the late rank applies its changes to them, ``newest + (own - old)``.
    In the mean these changes have the same weight as another rank's, so no changes are dropped.
    The outer parameters have the same bits on all participants of a step.

    A late rank waits until the others reach their next outer step. A thread of the first member
    chooses the participants, also while that member is late. If the first member's process stops,
    as after SIGSTOP, the others wait until it continues or counts as lost
    (``peer_timeout_seconds``). The first step on a communicator, and the step after a failed
    exchange, wait for all ranks.

    If the parameters of a participant are not finite, all participants get NaN, and the outer state
    is unchanged except for ``count``: continue from ``state.outer.params``. With
    ``exclude_nonfinite=True`` in the outer step, the step is the mean of the other participants.

    On the wire: a small message from each rank to the first rank and back; then the outer step's
    messages between the participants; if a participant was late in an earlier step, also a lossless
    `bcast` of the outer parameters and the optimiser's state. Each set of participants has its own
    communicator, for which jitted programs are compiled again.

    Attributes:
      participants: the processes that have done the last step, in the order of their ranks.
    """

    def __init__(
        self,
        outer: Outer,
        fraction: float = 0.75,
        grace_seconds: float = 10.0,
        timeout_seconds: float | None = None,
        name: str = "outer",
    ):
        """Communicates nothing.

        Args:
          outer: the result of `diloco`, `local_sgd` or `sparse_loco`, between processes.
          fraction: the fraction of a communicator's members that is a quorum; above 0.5, up to 1. A
            quorum is always a majority, so that two parts of a group cannot diverge.
          grace_seconds: the time to wait for other ranks once there is a quorum.
          timeout_seconds: the time to wait for a quorum; at least the training time between two
            outer steps, since a late rank waits for the next step. Default: the option
            ``timeout_seconds``.
          name: prefix of the communicators' names; the same on all ranks, and different for each
            `Quorum` that exists at the same time.

        Raises:
          InvalidArgumentError: for invalid arguments.

        Example:
          >>> quorum = jaxccomp.optim.Quorum(                             # doctest: +SKIP
          ...     jaxccomp.optim.diloco(codec="int4"), grace_seconds=5)
          >>> state = quorum.init(params)                                 # doctest: +SKIP
          >>> while int(state.count) < 100:                               # doctest: +SKIP
          ...     params, inner = train_some_steps(params, inner)
          ...     last = int(state.count) == 99
          ...     params, state = quorum.step(params, state, wait_for_all=last)
        """
        if not isinstance(outer, Outer):
            raise errors.InvalidArgumentError(
                f"Quorum: outer must be what jaxccomp.optim.diloco, local_sgd or sparse_loco "
                f"makes, not {outer!r}."
            )
        axis_name = outer.options.get("axis_name")
        if axis_name is not None:
            raise errors.InvalidArgumentError(
                "Quorum: the devices along an axis run one program, of which none is late: leave "
                f"axis_name={axis_name!r} out, so that ranks are processes."
            )
        if not _is_number(fraction) or not 0.5 < fraction <= 1:
            raise errors.InvalidArgumentError(
                f"Quorum: fraction must be a number above 0.5 and at most 1, not {fraction!r}."
            )
        if not _is_number(grace_seconds) or not 0 <= grace_seconds < math.inf:
            raise errors.InvalidArgumentError(
                f"Quorum: grace_seconds must be a number of at least 0, not {grace_seconds!r}."
            )
        if timeout_seconds is not None and not (
            _is_number(timeout_seconds) and timeout_seconds > 0
        ):
            raise errors.InvalidArgumentError(
                f"Quorum: timeout_seconds must be a number above 0, not {timeout_seconds!r}."
            )
        if not isinstance(name, str) or not name or "/" in name or ":" in name:
            raise errors.InvalidArgumentError(
                f"Quorum: name must be a text without '/' and ':', not {name!r}."
            )
        self._outer = outer
        self._fraction, self._grace_seconds = float(fraction), float(grace_seconds)
        self._timeout_seconds = timeout_seconds
        self._name = name
        self._step = jax.jit(outer.step, static_argnames="comm")
        self.participants: tuple[int, ...] = ()

    def init(self, params: Any) -> QuorumState:
        """Return the first state, without communication; all ranks pass the same ``params``.

        Raises:
          UnsupportedDTypeError: for parameters that are not floating.
        """
        require_floating("Quorum", params)
        return QuorumState(np.zeros((), np.int32), self._outer.init(params))

    def step(
        self, params: Any, state: QuorumState, comm: Any = None, *, wait_for_all: bool = False
    ) -> tuple[Any, QuorumState]:
        """Do an outer step; call it outside of ``jax.jit``.

        Args:
          params: the parameters that this rank has trained since its last outer step.
          state: the result of the last call. Its ``count`` may exceed the number of this rank's
            calls: to decide when training ends, compare ``count``, and do not count calls.
          comm: the communicator whose members may take part; by default the communicator of the
            outer step's options.
          wait_for_all: whether to wait for all members, however late. Set it in the last step, so
            that all members end with the same bits. It is enough if one rank sets it.

        Returns:
          ``(params, state)``: the parameters from which all participants continue, and the next
          state.

        Raises:
          InvalidArgumentError: for parameters of another structure, shape or dtype than in
            ``init``, and if ranks have different quorums or grace windows.
          CommunicatorError: if processes did not join by ``jaxccomp.init(coordinator=...)``.
          InitializationError: if a member is lost, or no quorum arrives in time.
          JaxRuntimeError: if the exchange fails. The state is unchanged; call again, after
            `jaxccomp.Communicator.shrink` if a member is lost.
        """
        if not isinstance(state, QuorumState):
            raise errors.InvalidArgumentError(
                f"Quorum: the state must be a QuorumState, which init(params) makes, not "
                f"{type(state).__name__}."
            )
        check_alike("Quorum", params, state.outer.params)
        params = jax.block_until_ready(params)  # a rank arrives when it has computed
        found = participants(
            self._outer.options.get("comm") if comm is None else comm,
            self._name,
            int(state.count),
            self._fraction,
            self._grace_seconds,
            wait_for_all,
            self._timeout_seconds,
        )
        outer = state.outer
        if found.some_behind:
            shared = _shared(outer)
            newest = bcast(shared, root=found.root, comm=found.comm, codec="lossless")
            if int(state.count) < found.done:
                # Apply this rank's changes since an older outer step to the newest parameters.
                params = jax.tree.map(_move, params, outer.params, newest["params"])
                outer = _with_shared(outer, newest)
        params, outer = jax.block_until_ready(self._step(params, outer, comm=found.comm))
        self.participants = found.comm.processes
        return params, QuorumState(np.asarray(found.done + 1, np.int32), outer)


def _move(own: Any, old: Any, newest: Any) -> Any:
    return newest + (own - old)


def _shared(state: OuterState) -> dict[str, Any]:
    """Return the parts of a state that are the same on all ranks."""
    exchange = state.exchange
    fields = set(getattr(exchange, "_fields", ())) - set(PER_RANK.get(type(exchange), ()))
    alike = {field: getattr(exchange, field) for field in sorted(fields)}
    return {"params": state.params, "optimizer": state.optimizer, "exchange": alike}


def _with_shared(state: OuterState, shared: dict[str, Any]) -> OuterState:
    """Return ``shared`` with the per-rank parts of ``state``."""
    exchange = state.exchange
    if shared["exchange"]:
        exchange = exchange._replace(**shared["exchange"])
    return OuterState(shared["params"], exchange, shared["optimizer"])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

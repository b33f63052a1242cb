"""Outer steps that do not wait for stragglers for ever."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from jaxccomp import errors
from jaxccomp._api.participants import participants
from jaxccomp.ops import bcast
from jaxccomp.optim._outer import Outer, check_alike
from jaxccomp.optim._states import PER_RANK, OuterState, QuorumState, require_floating


class Quorum:
    """Outer steps of those ranks that have come, where others are late.

    In each outer step all ranks are waited for; but once a quorum has come, others have only
    ``grace_seconds`` more. Then the step is done by those that are there, whose mean is over
    themselves. Who is late takes part in the next one: it is given the newest outer parameters and
    the state of the outer optimiser by one of those that have them, moves what it has learnt there,
    ``newest + (own - old)``, and this counts in the mean as everybody's does. So nothing that a
    rank has learnt is dropped, and all that have done an outer step hold the same bits.

    A late rank waits, until the others come to their next outer step. The first member decides
    (also while it is late itself: a thread of it does), so while its whole process stands still,
    as after SIGSTOP, the others wait for it, or until it is given up (``peer_timeout_seconds``).
    The first step on a communicator, and the one after an exchange that has failed, wait for all.

    If the parameters of a rank that takes part are not finite, all that take part get NaN, and the
    outer state is as it was, but for ``count``: continue from ``state.outer.params``. With
    ``exclude_nonfinite=True`` in the outer step, the step is that of the other ranks.

    On the wire: a small message of each rank to the first one and back; then what the outer step
    sends, between those that take part, each set of which has a communicator of its own (for which
    jitted programs are compiled anew); and where one of them was late before, a lossless `bcast` of
    the outer parameters and the optimiser's state.

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
          outer: what `diloco`, `local_sgd` or `sparse_loco` makes, between processes.
          fraction: of a communicator's members, how many are a quorum; above 0.5, up to 1. A
            quorum is a majority in any case, so that parts of a group cannot go different ways.
          grace_seconds: how long the others are waited for once there is a quorum.
          timeout_seconds: how long a step waits for a quorum, at least as long as training goes on
            between two of them, as a late rank waits for the next one. Default: the option
            ``timeout_seconds``.
          name: of the communicators of those that take part; the same on all ranks, and another
            one for each of several at a time.

        Raises:
          InvalidArgumentError: for arguments that are not as said.

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
        if outer.options.get("axis_name") is not None:
            raise errors.InvalidArgumentError(
                "Quorum: the devices along an axis run one program, of which none is late: leave "
                f"axis_name={outer.options['axis_name']!r} out, so that ranks are processes."
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
        """The first state, of parameters that all ranks have; it communicates nothing.

        Raises:
          UnsupportedDTypeError: for parameters that are not floating.
        """
        require_floating("Quorum", params)
        return QuorumState(np.zeros((), np.int32), self._outer.init(params))

    def step(
        self, params: Any, state: QuorumState, comm: Any = None, *, wait_for_all: bool = False
    ) -> tuple[Any, QuorumState]:
        """An outer step, outside of ``jax.jit``.

        Args:
          params: those that this rank has trained since its last outer step.
          state: what the last call gave. Its ``count`` may be ahead of this rank's calls: train
            until it is what you want, and not for so many calls.
          comm: the communicator whose members may take part; by default that of the outer step's
            options.
          wait_for_all: whether all members are to take part, however late: for the last step, after
            which all hold the same bits. It counts for all if one rank gives it.

        Returns:
          ``(params, state)``: the parameters that all who take part go on with, and the next
          state.

        Raises:
          InvalidArgumentError: for parameters that are not those of ``init``, and where ranks have
            other quorums or grace windows.
          CommunicatorError: where processes have not met by ``jaxccomp.init(coordinator=...)``.
          InitializationError: where a member is gone, and where no quorum has come in time.
          JaxRuntimeError: where the exchange fails. The state is as before; call again, after
            `jaxccomp.Communicator.shrink` if a member is gone.
        """
        if not isinstance(state, QuorumState):
            raise errors.InvalidArgumentError(
                f"Quorum: the state must be a QuorumState, which init(params) makes, not "
                f"{type(state).__name__}."
            )
        check_alike("Quorum", params, state.outer.params)
        params = jax.block_until_ready(params)  # who still computes has not come
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
                # What this rank has learnt since an old outer step, as if since the newest one.
                params = jax.tree.map(_move, params, outer.params, newest["params"])
                outer = _with_shared(outer, newest)
        params, outer = jax.block_until_ready(self._step(params, outer, comm=found.comm))
        self.participants = found.comm.processes
        return params, QuorumState(np.asarray(found.done + 1, np.int32), outer)


def _move(own: Any, old: Any, newest: Any) -> Any:
    return newest + (own - old)


def _shared(state: OuterState) -> dict[str, Any]:
    """What of a state is the same on all ranks."""
    exchange = state.exchange
    fields = set(getattr(exchange, "_fields", ())) - set(PER_RANK.get(type(exchange), ()))
    alike = {field: getattr(exchange, field) for field in sorted(fields)}
    return {"params": state.params, "optimizer": state.optimizer, "exchange": alike}


def _with_shared(state: OuterState, shared: dict[str, Any]) -> OuterState:
    """A state whose own part is that of ``state``."""
    exchange = state.exchange
    if shared["exchange"]:
        exchange = exchange._replace(**shared["exchange"])
    return OuterState(shared["params"], exchange, shared["optimizer"])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""Outer steps in parts: while one part of the parameters travels, training goes on."""

from __future__ import annotations

import dataclasses
import functools
import time
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import keystr

from jaxccomp import errors
from jaxccomp._api.arguments import make_call
from jaxccomp._api.background import Background
from jaxccomp.optim._outer import Outer, check_alike
from jaxccomp.optim._states import OuterState, StreamingState, require_floating


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """One under way, or over: of a fragment its number, counted from 1, and its result."""

    number: int
    result: Future[tuple[Any, OuterState]]  # see Streaming._outer_step


class Streaming:
    """Streaming DiLoCo: parts of the parameters take turns, and travel while training goes on.

    The leaves of the parameters are divided into fragments of about equal size. After step t,
    counted from 1, the exchange of fragment p begins if ``t - p * every // fragments`` is a
    multiple of ``every``: an outer step of the fragment's values at that time. ``delay`` steps
    later its result is mixed into what the rank has then, ``mixing * own + (1 - mixing) * result``
    (Douillard et al. 2025, "Streaming DiLoCo with overlapping communication", algorithm 2, with H,
    tau and alpha). So a fragment's first exchange may come after fewer steps than ``every``.
    Fragments here are made of leaves, the largest first into the smallest fragment, where the paper
    takes layers.

    The outer parameters, in ``state``, are the same on all ranks, bit for bit; those that ranks
    train differ but after ``finish``. With ``mixing=0`` those of a fragment are equal once its
    result is there. If a rank's values of a fragment are not finite, the result is NaN on all
    ranks and the fragment's state is as it was: `finish` gives parameters to continue from. With
    ``exclude_nonfinite=True`` in the outer step, the result is that of the other ranks.

    On the wire: what the outer step sends for a fragment, ``fragments`` times in ``every`` steps,
    on a duplicate of the communicator and from a thread of its own: on CPUs JAX runs what one
    thread launches one after the other, so within the program of a step it would hold up the next.

    Attributes:
      exchange_seconds: how long exchanges have taken in all, from when their values were there.
      waited_seconds: how long inner steps were over and had to wait for a result; also ``settle``
        and ``finish``.
    """

    def __init__(
        self,
        outer: Outer,
        every: int,
        fragments: int,
        delay: int,
        mixing: float = 0.5,
        name: str = "outer",
    ):
        """Communicates nothing.

        Args:
          outer: what `diloco`, `local_sgd` or `sparse_loco` makes.
          every: a fragment's exchange begins every so many steps.
          fragments: into how many parts the parameters are divided, at most one for each leaf and
            each of ``every`` steps.
          delay: how many steps later the result is taken, at least 0 (``step`` waits for it) and
            less than ``every``. Exchanges that take longer than these steps are waited for.
          mixing: how much of what a rank has learnt meanwhile remains, from 0 to 1.
          name: of the duplicate of the communicator and of the thread; the same on all ranks, and
            another one for each of several at a time.

        Raises:
          InvalidArgumentError: for arguments that are not as said.

        Example:
          >>> streaming = jaxccomp.optim.Streaming(                       # doctest: +SKIP
          ...     jaxccomp.optim.diloco(codec="int4"), every=30, fragments=3, delay=5)
          >>> state = streaming.init(params)                              # doctest: +SKIP
          >>> for batch in batches:                                       # doctest: +SKIP
          ...     params, inner = train(params, inner, batch)
          ...     params, state = streaming.step(params, state)
          >>> params, state = streaming.finish(params, state)             # doctest: +SKIP
        """
        _check_number("every", every, 1)
        _check_number("fragments", fragments, 1, every)
        _check_number("delay", delay, 0, every - 1)
        if not isinstance(mixing, (int, float)) or not 0 <= mixing <= 1:
            raise errors.InvalidArgumentError(
                f"Streaming: mixing must be a number from 0 to 1, not {mixing!r}: 0 takes the "
                "result as it is, 1 leaves a rank what it has."
            )
        if not isinstance(outer, Outer):
            raise errors.InvalidArgumentError(
                f"Streaming: outer must be what jaxccomp.optim.diloco, local_sgd or sparse_loco "
                f"makes, not {outer!r}."
            )
        if outer.options.get("axis_name") is not None and outer.mesh is None:
            raise errors.InvalidArgumentError(
                "Streaming: step is called outside of shard_map; give the outer step the mesh that "
                f"has the axis {outer.options['axis_name']!r}: mesh=mesh."
            )
        self._every, self._delay = every, delay
        self._begins = [p * every // fragments for p in range(fragments)]
        self._outer = outer
        self._name = name
        self._background = Background(name)
        self._step = jax.jit(self._outer_step, static_argnames="comm")
        self._mix = jax.jit(functools.partial(_mix, mixing))
        self._exchanges: dict[int, _Exchange] = {}
        self.exchange_seconds = 0.0
        self.waited_seconds = 0.0

    def init(self, params: Any) -> StreamingState:
        """The first state, of parameters that all ranks have; it communicates nothing.

        Raises:
          InvalidArgumentError: where there are fewer leaves than fragments.
          UnsupportedDTypeError: for parameters that are not floating.
        """
        require_floating("Streaming", params)
        states = tuple(self._outer.init(part) for part in self._split(params))
        count = len(states)
        return StreamingState(np.zeros((), np.int32), np.zeros(count, np.int32), states)

    def step(
        self, params: Any, state: StreamingState, comm: Any = None
    ) -> tuple[Any, StreamingState]:
        """What a program calls after every inner step, outside of ``jax.jit``.

        Args:
          params: what this rank has after the step; not donated.
          state: what the last call gave.
          comm: the communicator whose ranks take part in exchanges that begin now; by default that
            of the outer step's options.

        Returns:
          ``(params, state)`` for the next step: the same parameters, but for fragments whose result
          was due.

        Raises:
          InvalidArgumentError: for parameters that are not those of ``init``, and for a state that
            was saved without `settle` while an exchange was under way.
          JaxRuntimeError: what a failed exchange has raised, on the step that takes its result.
        """
        count = int(state.count) + 1
        parts = self._split(params)
        self._check(parts, state)
        for p, part in enumerate(parts):
            number = self._begun(p, count)
            if number > self._begun(p, count - 1):
                # A copy, as the next step may be given these parameters to overwrite.
                self._begin(p, number, jax.tree.map(jnp.copy, part), state.fragments[p], comm)
        due = [
            p
            for p in range(len(parts))
            if self._begun(p, count - self._delay) > self._begun(p, count - self._delay - 1)
        ]
        state = self._take(params, state, count, due)._replace(count=np.asarray(count, np.int32))
        mixed = {}
        for p in due:
            exchange = self._exchanges.get(p)
            finite = True  # of an exchange before a restart it is not known, and its state is
            if exchange is not None and exchange.number == state.exchanges[p]:
                finite = exchange.result.result()[0]
            mixed.update(self._mix(parts[p], state.fragments[p].params, finite))
        return _replaced(params, mixed), state

    def settle(self, state: StreamingState) -> StreamingState:
        """Waits for all exchanges, and gives the state with their results: what to save.

        Training goes on from it, here or in another program, as if it had not been saved. Results
        are taken by ``step`` when they are due, as ever.
        """
        return self._take((), state, int(state.count), range(len(self._begins)))

    def finish(self, params: Any, state: StreamingState) -> tuple[Any, StreamingState]:
        """Waits for all exchanges, and gives the outer parameters: the same on all ranks.

        For the end of training, or to evaluate; what this rank has learnt since its last exchanges
        is not in them.

        Args:
          params: what this rank has; only their structure counts.
          state: what the last ``step`` gave.

        Returns:
          ``(params, state)``: the outer parameters and the settled state.
        """
        parts = self._split(params)
        self._check(parts, state)
        state = self.settle(state)
        mix = jax.jit(functools.partial(_mix, 0.0))
        outer = {}
        for part, fragment in zip(parts, state.fragments, strict=True):
            outer.update(mix(part, fragment.params, True))
        return _replaced(params, outer), state

    def _begun(self, p: int, count: int) -> int:
        """How many exchanges of fragment p have begun after so many steps."""
        begun = max(0, (count - self._begins[p]) // self._every + 1)
        return begun if self._begins[p] else max(0, begun - 1)  # none after no step

    def _begin(self, p: int, number: int, part: Any, state: OuterState, comm: Any) -> None:
        if self._outer.mesh is None:
            given = comm if comm is not None else self._outer.options.get("comm")
            world_or_given = make_call("allreduce", op="mean", comm=given).comm
            assert world_or_given is not None
            comm = world_or_given.duplicate(self._name)
        self._exchanges[p] = _Exchange(number, self._background.start(self._run, part, state, comm))

    def _outer_step(self, part: Any, state: OuterState, comm: Any) -> tuple[Any, OuterState]:
        """Whether the step is finite, on a mesh for each row, and the state."""
        params, state = self._outer.step(part, state, comm=comm)
        leaf = next(iter(params.values()))  # in a bad step all values are NaN
        rows = 0 if self._outer.mesh is None else 1
        return jnp.isfinite(leaf).all(axis=tuple(range(rows, leaf.ndim))), state

    def _run(self, part: Any, state: OuterState, comm: Any) -> tuple[Any, OuterState]:
        jax.block_until_ready(part)
        begin = time.perf_counter()
        result = jax.block_until_ready(self._step(part, state, comm=comm))
        self.exchange_seconds += time.perf_counter() - begin
        return result

    def _take(self, params: Any, state: StreamingState, count: int, which: Any) -> StreamingState:
        """The state with the results of exchanges that have begun, of these fragments."""
        fragments, exchanges = list(state.fragments), np.array(state.exchanges)
        for p in which:
            number = self._begun(p, count)
            if exchanges[p] == number:
                continue
            exchange = self._exchanges.get(p)
            if exchange is None or exchange.number != number or exchanges[p] != number - 1:
                raise errors.InvalidArgumentError(
                    f"Streaming: after {count} steps, exchange {number} of fragment {p} is neither "
                    f"in the state, which has {exchanges[p]}, nor under way: it was saved in the "
                    "middle of one. Save what settle(state) gives."
                )
            if not exchange.result.done():
                # Only what inner steps do not take themselves is waiting: they run asynchronously.
                jax.block_until_ready(params)
                begin = time.perf_counter()
                exchange.result.exception()
                self.waited_seconds += time.perf_counter() - begin
            fragments[p] = exchange.result.result()[1]
            exchanges[p] = number
        return StreamingState(state.count, exchanges, tuple(fragments))

    def _split(self, params: Any) -> list[dict[str, Any]]:
        """The fragments of parameters: leaves by path. It follows from shapes alone."""
        leaves = {keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
        if len(leaves) < len(self._begins):
            raise errors.InvalidArgumentError(
                f"Streaming: fragments={len(self._begins)} of {len(leaves)} leaves; a fragment has "
                "at least one."
            )
        parts: list[dict[str, Any]] = [{} for _ in self._begins]
        sizes = [0] * len(parts)
        for path in sorted(leaves, key=lambda path: (-np.size(leaves[path]), path)):
            # By number of leaves where sizes are equal, so that none remains empty.
            smallest = min(range(len(parts)), key=lambda p: (sizes[p], len(parts[p])))
            parts[smallest][path] = leaves[path]
            sizes[smallest] += np.size(leaves[path])
        return parts

    def _check(self, parts: list[dict[str, Any]], state: StreamingState) -> None:
        if len(state.fragments) != len(parts):
            raise errors.InvalidArgumentError(
                f"Streaming: the state has {len(state.fragments)} fragments, not {len(parts)}; it "
                "is that of another Streaming."
            )
        if self._outer.mesh is None:  # else they are rows, which the outer step looks at
            for part, fragment in zip(parts, state.fragments, strict=True):
                check_alike("Streaming", part, fragment.params)


def _check_number(name: str, value: Any, least: int, most: int | None = None) -> None:
    valid = isinstance(value, int) and not isinstance(value, bool)
    if not valid or value < least or (most is not None and value > most):
        limit = "" if most is None else f" and at most {most}, as every= says"
        raise errors.InvalidArgumentError(
            f"Streaming: {name} must be an integer of at least {least}{limit}, not {value!r}."
        )


def _mix(mixing: float, own: Any, outer: Any, finite: Any) -> Any:
    """New arrays, never those of the state, which programs might overwrite."""

    def mix(x: Any, y: Any) -> Any:
        y = jnp.broadcast_to(y, x.shape)
        mixed = y if mixing == 0 else (mixing * x + (1 - mixing) * y).astype(x.dtype)
        rows = jnp.reshape(finite, jnp.shape(finite) + (1,) * (x.ndim - jnp.ndim(finite)))
        return lax.select(jnp.broadcast_to(rows, x.shape), mixed, jnp.full_like(x, jnp.nan))

    return jax.tree.map(mix, own, outer)


def _replaced(params: Any, new: dict[str, Any]) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: new.get(keystr(path), leaf), params)

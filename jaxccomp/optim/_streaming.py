"""Streaming outer steps: fragments of the parameters are exchanged during training."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import keystr

from jaxccomp import errors
from jaxccomp._api.arguments import make_call
from jaxccomp._native import launches
from jaxccomp.optim._outer import Outer, check_alike
from jaxccomp.optim._states import OuterState, StreamingState, require_floating

P = ParamSpec("P")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """An exchange of a fragment: its number, counted from 1, and its future result."""

    number: int
    result: Future[tuple[Any, OuterState]]  # see Streaming._outer_step


class Streaming:
    """Streaming DiLoCo: exchange fragments of the parameters in turn, concurrently with training.

    The leaves of the parameters are divided into fragments of about equal size. An exchange is an
    outer step of one fragment. After step t, counted from 1, the exchange of fragment p begins with
    the current values if ``t - p * every // fragments`` is a multiple of ``every``. ``delay`` steps
    later its result is mixed into the values of that step, ``mixing * own + (1 - mixing) * result``
    (Douillard et al. 2025, "Streaming DiLoCo with overlapping communication", algorithm 2, with H,
    tau and alpha). A fragment's first exchange may thus come after fewer than ``every`` steps. The
    paper's fragments are layers; here each leaf, largest first, goes to the smallest fragment.

    The outer parameters, in ``state``, are the same on all ranks, bit for bit. The trained
    parameters differ between ranks until ``finish``; with ``mixing=0`` a fragment's parameters are
    equal when its result is taken. If a rank's values of a fragment are not finite, the result is
    NaN on all ranks and the fragment's state is unchanged: continue from the parameters that
    `finish` returns. With ``exclude_nonfinite=True`` in the outer step, the result is the other
    ranks' mean.

    On the wire: in ``every`` steps, one outer step of each fragment, on a duplicate of the
    communicator and from a separate thread. On CPUs JAX runs the programs of one thread one after
    the other: on the main thread an exchange would delay the next training step.

    Attributes:
      exchange_seconds: total time of exchanges; each starts when its input values are computed.
      waited_seconds: total time that ``step``, ``settle`` and ``finish`` waited for results after
        the inner steps were done.
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
          outer: the result of `diloco`, `local_sgd` or `sparse_loco`.
          every: the number of steps between two exchanges of a fragment.
          fragments: the number of fragments, at most ``every`` and the number of leaves.
          delay: the number of steps until a result is taken, at least 0 (``step`` waits for it) and
            less than ``every``. ``step`` waits for an exchange that takes longer.
          mixing: the weight of the rank's own values, from 0 to 1.
          name: the name of the duplicate communicator and of the thread; the same on all ranks, and
            different for each `Streaming` that exists at the same time.

        Raises:
          InvalidArgumentError: for invalid arguments.

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
                "result as it is, 1 keeps the rank's own parameters."
            )
        if not isinstance(outer, Outer):
            raise errors.InvalidArgumentError(
                f"Streaming: outer must be what jaxccomp.optim.diloco, local_sgd or sparse_loco "
                f"makes, not {outer!r}."
            )
        axis_name = outer.options.get("axis_name")
        if axis_name is not None and outer.mesh is None:
            raise errors.InvalidArgumentError(
                "Streaming: step is called outside of shard_map; give the outer step the mesh that "
                f"has the axis {axis_name!r}: mesh=mesh."
            )
        self._every, self._delay = every, delay
        self._begins = [p * every // fragments for p in range(fragments)]
        self._outer = outer
        self._name = name
        self._background = _Background(name)
        self._step = jax.jit(self._outer_step, static_argnames="comm")
        self._mix = jax.jit(functools.partial(_mix, mixing))
        self._exchanges: dict[int, _Exchange] = {}
        self.exchange_seconds: float = 0.0
        self.waited_seconds: float = 0.0

    def init(self, params: Any) -> StreamingState:
        """Return the first state, without communication; all ranks pass the same ``params``.

        Raises:
          InvalidArgumentError: if there are fewer leaves than fragments.
          UnsupportedDTypeError: for parameters that are not floating.
        """
        require_floating("Streaming", params)
        states = tuple(self._outer.init(part) for part in self._split(params))
        count = len(states)
        return StreamingState(np.zeros((), np.int32), np.zeros(count, np.int32), states)

    def step(
        self, params: Any, state: StreamingState, comm: Any = None
    ) -> tuple[Any, StreamingState]:
        """Begin exchanges and take results; call it after every inner step, outside of ``jax.jit``.

        Args:
          params: this rank's parameters after the step; not donated.
          state: the result of the last call.
          comm: the communicator whose ranks take part in exchanges that begin now; by default the
            communicator of the outer step's options.

        Returns:
          ``(params, state)`` for the next step. Only fragments whose result was due have changed.

        Raises:
          InvalidArgumentError: for parameters of other structure, shape or dtype than in ``init``,
            and for a state that was saved without `settle` during an exchange.
          JaxRuntimeError: the error of a failed exchange, in the step that takes its result.
        """
        count = int(state.count) + 1
        parts = self._split(params)
        self._check(parts, state)
        for p, part in enumerate(parts):
            number = self._begun(p, count)
            if number > self._begun(p, count - 1):
                # A copy, since the next inner step may donate these parameters.
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
            finite = True  # unknown after a restart; the state then has finite values
            if exchange is not None and exchange.number == state.exchanges[p]:
                finite = exchange.result.result()[0]
            mixed.update(self._mix(parts[p], state.fragments[p].params, finite))
        return _replaced(params, mixed), state

    def settle(self, state: StreamingState) -> StreamingState:
        """Wait for all exchanges, and return the state with their results, for a checkpoint.

        Training that continues from the returned state, in this or another program, has the same
        results as without the checkpoint: ``step`` still mixes in each result when it is due.
        """
        return self._take((), state, int(state.count), range(len(self._begins)))

    def finish(self, params: Any, state: StreamingState) -> tuple[Any, StreamingState]:
        """Wait for all exchanges, and return the outer parameters: the same on all ranks.

        Call it at the end of training or before evaluation. The outer parameters do not include
        this rank's inner steps since its last exchanges.

        Args:
          params: this rank's parameters; only their structure is used.
          state: the result of the last ``step``.

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
        """Return the number of exchanges of fragment p that have begun after ``count`` steps."""
        begun = max(0, (count - self._begins[p]) // self._every + 1)
        return begun if self._begins[p] else max(0, begun - 1)  # none at step 0

    def _begin(self, p: int, number: int, part: Any, state: OuterState, comm: Any) -> None:
        if self._outer.mesh is None:
            given = comm if comm is not None else self._outer.options.get("comm")
            world_or_given = make_call("allreduce", op="mean", comm=given).comm
            assert world_or_given is not None
            comm = world_or_given.duplicate(self._name)
        self._exchanges[p] = _Exchange(number, self._background.start(self._run, part, state, comm))

    def _outer_step(self, part: Any, state: OuterState, comm: Any) -> tuple[Any, OuterState]:
        """Do the outer step; return whether it is finite (on a mesh per row), and the state."""
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
        """Return the state with the results of the exchanges begun, of the fragments ``which``."""
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
                # Exclude the time of inner steps, which run asynchronously.
                jax.block_until_ready(params)
                begin = time.perf_counter()
                exchange.result.exception()
                self.waited_seconds += time.perf_counter() - begin
            fragments[p] = exchange.result.result()[1]
            exchanges[p] = number
        return StreamingState(state.count, exchanges, tuple(fragments))

    def _split(self, params: Any) -> list[dict[str, Any]]:
        """Return the fragments, dicts of leaves by path; they depend on shapes and paths only."""
        leaves = {keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
        if len(leaves) < len(self._begins):
            raise errors.InvalidArgumentError(
                f"Streaming: fragments={len(self._begins)} of {len(leaves)} leaves; a fragment has "
                "at least one."
            )
        parts: list[dict[str, Any]] = [{} for _ in self._begins]
        sizes = [0] * len(parts)
        for path in sorted(leaves, key=lambda path: (-np.size(leaves[path]), path)):
            # If sizes are equal, choose the fragment with fewer leaves, so that none remains empty.
            smallest = min(range(len(parts)), key=lambda p: (sizes[p], len(parts[p])))
            parts[smallest][path] = leaves[path]
            sizes[smallest] += np.size(leaves[path])
        return parts

    def _check(self, parts: list[dict[str, Any]], state: StreamingState) -> None:
        if len(state.fragments) != len(parts):
            raise errors.InvalidArgumentError(
                f"Streaming: the state has {len(state.fragments)} fragments, not {len(parts)}; it "
                "belongs to another Streaming."
            )
        if self._outer.mesh is None:  # on a mesh the outer step checks them
            for part, fragment in zip(parts, state.fragments, strict=True):
                check_alike("Streaming", part, fragment.params)


def _check_number(name: str, value: Any, minimum: int, maximum: int | None = None) -> None:
    valid = isinstance(value, int) and not isinstance(value, bool)
    if not valid or value < minimum or (maximum is not None and value > maximum):
        limit = "" if maximum is None else f" and at most {maximum}, as every= says"
        raise errors.InvalidArgumentError(
            f"Streaming: {name} must be an integer of at least {minimum}{limit}, not {value!r}."
        )


def _mix(mixing: float, own: Any, outer: Any, finite: Any) -> Any:
    """Return new arrays, not the state's, since programs may donate the result."""

    def mix(x: Any, y: Any) -> Any:
        y = jnp.broadcast_to(y, x.shape)
        mixed = y if mixing == 0 else (mixing * x + (1 - mixing) * y).astype(x.dtype)
        rows = jnp.reshape(finite, jnp.shape(finite) + (1,) * (x.ndim - jnp.ndim(finite)))
        return lax.select(jnp.broadcast_to(rows, x.shape), mixed, jnp.full_like(x, jnp.nan))

    return jax.tree.map(mix, own, outer)


def _replaced(params: Any, new: dict[str, Any]) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: new.get(keystr(path), leaf), params)


class _Background:
    """Calls functions in order, in its own thread.

    On CPUs JAX runs the programs of one thread in order: an operation that waits for other ranks
    delays the next program of its thread. Programs of different threads run concurrently.
    """

    def __init__(self, name: str):
        """Starts no thread yet.

        Args:
          name: the thread's name, by which the engine matches launches; the same on all ranks.
        """
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"jaxccomp-{name}")

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call of ``function``. The interpreter exits only after it has returned."""

        def run() -> T:
            with launches.own_settings():
                return function(*args, **kwargs)

        return self._executor.submit(run)

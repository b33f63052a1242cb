"""The rows of random programs: the contract's, and messages between two ranks.

The contract's rows have a fixed root and fixed counts for each number of ranks. A `Layout` replaces
them within a ``with`` block.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from contract import OPERATIONS, Operation, data, operations

import jaxccomp as jcc
from jaxccomp._api import arguments

MAX_RANKS = 8
SMALL_BYTES = 4096
PLAIN = ("jit", "donated", "eager")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The root, and the rows of each rank in v-variants.

    Attributes:
      root: modulo the number of ranks.
      rows: for each of `MAX_RANKS` ranks.
      matrix: rows from each rank to each other rank.
    """

    root: int
    rows: tuple[int, ...]
    matrix: tuple[tuple[int, ...], ...]


_layout: contextvars.ContextVar[Layout | None] = contextvars.ContextVar("layout", default=None)


@contextlib.contextmanager
def laid_out(layout: Layout) -> Iterator[None]:
    """Applies ``layout`` to the contract's calls, shapes and definitions in this thread."""
    token = _layout.set(layout)
    try:
        yield
    finally:
        _layout.reset(token)


def _choose(name: str, pick: Callable[[Layout, int], Any]) -> None:
    """Makes a function of the contract use the layout, if there is one."""
    own = getattr(operations, name)

    def choice(n: int) -> Any:
        layout = _layout.get()
        return own(n) if layout is None else pick(layout, n)

    setattr(operations, name, choice)


_choose("_root", lambda layout, n: layout.root % n)
_choose("_rows", lambda layout, n: list(layout.rows[:n]))
_choose("_matrix", lambda layout, n: np.array(layout.matrix)[:n, :n])


# --- handles -------------------------------------------------------------------------------------

Call = Callable[[Any, Any], Any]
_instead: contextvars.ContextVar[Callable[..., Any] | None] = contextvars.ContextVar(
    "instead", default=None
)


# Operations with a non-blocking form.
_OPERATIONS = frozenset(jcc.ops.__all__) - {
    "ANY_SOURCE",
    "ANY_TAG",
    "Handle",
    "barrier",
    "nonblocking",
}


class _Operations:
    """`jaxccomp` for the contract's calls: `_instead` may replace an operation."""

    def __getattr__(self, name: str) -> Any:
        instead = _instead.get()
        if instead is None or name not in _OPERATIONS:
            return getattr(jcc, name)
        return lambda *args, **options: instead(name, *args, **options)


operations.jcc = _Operations()


class _Started(Exception):  # noqa: N818 - only leaves the call
    def __init__(self, handle: Any):
        self.handle = handle


@contextlib.contextmanager
def _with(instead: Callable[..., Any]) -> Iterator[None]:
    token = _instead.set(instead)
    try:
        yield
    finally:
        _instead.reset(token)


def start(call: Call, place: Any, x: Any) -> Callable[[Any], Any]:
    """Starts the operation of a row's call.

    Args:
      call: of the row.
      place, x: arguments of the call.

    Returns:
      A function that waits for the handle, with ``after``, and returns the result of the call.
    """

    def begin(name: str, *args: Any, **options: Any) -> Any:
        raise _Started(jcc.nonblocking(getattr(jcc, name))(*args, **options))

    try:
        with _with(begin):
            call(place, x)
    except _Started as started:
        handle = started.handle

    def finish(after: Any) -> Any:
        with _with(lambda name, *args, **options: handle.wait(after=after)):
            return call(place, x)

    return finish


# --- messages between two ranks ------------------------------------------------------------------


def _partners(n: int) -> list[int | None]:
    """Ranks 0 and 1 exchange values, 2 and 3, and so on."""
    return [rank ^ 1 if rank ^ 1 < n else None for rank in range(n)]


def _pairs(place: Any, x: Any) -> Any:
    partners = _partners(place.n)
    return jcc.sendrecv(x, partners, partners, tag=5, **place.how)


def _ring_with_a_tag(place: Any, x: Any) -> Any:
    n = place.n
    to, by = [(r - 1) % n for r in range(n)], [(r + 1) % n for r in range(n)]
    return jcc.sendrecv(x, to, by, tag=6, **place.how)


def _tags_crossed(place: Any, x: Any) -> Any:
    """Receives in reverse order of sending, selected by tags."""
    partner = _partners(place.n)[place.rank]
    how = {"comm": place.how["comm"].ordered()}
    if partner is None:
        return x
    if place.rank < partner:
        first = jcc.send(x, partner, tag=1, **how)
        jcc.send(x + x, partner, tag=2, **how)
        return first
    second = jcc.recv(x, partner, tag=2, **how)
    return second - jcc.recv(x, partner, tag=1, **how)


def _other_shapes_come_back(place: Any, x: Any) -> Any:
    """One rank of each pair sends its values flat, the other in their shape."""
    partner = _partners(place.n)[place.rank]
    how = {"comm": place.how["comm"].ordered()}
    if partner is None:
        return jnp.zeros_like(x)
    flat = jnp.reshape(x, -1)
    if place.rank < partner:
        y = jcc.sendrecv(x, partner, partner, like=flat, send_tag=3, recv_tag=4, **how)
        return jnp.reshape(y, x.shape)
    return jcc.sendrecv(flat, partner, partner, like=x, send_tag=4, recv_tag=3, **how)


def _from_anybody(place: Any, x: Any) -> Any:
    """The broadcast ensures that rank 0 has received before further messages are sent to it."""
    how = {"comm": place.how["comm"].ordered()}
    if place.rank:
        jcc.send(x, 0, tag=9, **how)
    else:
        for _ in range(place.n - 1):
            x = x + jcc.recv(jnp.zeros_like(x), jcc.ANY_SOURCE, tag=9, **how)
    return jcc.bcast(x, 0, **how)


def _exchanged(n: int, x: np.ndarray) -> np.ndarray:
    return np.stack([x[p] if p is not None else np.zeros_like(x[0]) for p in _partners(n)])


def _given_to_the_second(n: int, x: np.ndarray) -> np.ndarray:
    return np.stack([x[r ^ 1] if r % 2 else x[r] for r in range(n)])


_PROCESS: dict[str, Any] = {"styles": ("process",), "linear": False}
_MESSAGES = (
    Operation("pairs", _pairs, _exchanged, moves=True, **_PROCESS),
    Operation(
        "ring-with-a-tag",
        _ring_with_a_tag,
        lambda n, x: np.roll(x, -1, axis=0),
        moves=True,
        **_PROCESS,
    ),
    Operation("tags-crossed", _tags_crossed, _given_to_the_second, dtypes=data.SUMMED, **_PROCESS),
    Operation(
        "other-shapes-come-back", _other_shapes_come_back, _exchanged, moves=True, **_PROCESS
    ),
    Operation(
        "from-anybody",
        _from_anybody,
        lambda n, x: np.stack([x.sum(0, x.dtype)] * n),
        dtypes=data.SUMMED,
        **_PROCESS,
    ),
)

ROWS = {row.name: row for row in (*OPERATIONS, *_MESSAGES)}
MESSAGES = frozenset(row.name for row in _MESSAGES)
# They send twice before the first receive: large messages would deadlock.
SMALL_ONLY = frozenset({"tags-crossed"})
# Rows whose calls take only a communicator; the others take a codec and an algorithm as well.
WITHOUT_OPTIONS = MESSAGES | {"barrier", "send-recv", "ordered-bcast", "ordered-allreduce"}
# Rows on an ordered communicator. Threads that share one have no common order.
ON_ORDERED = WITHOUT_OPTIONS - {"pairs", "ring-with-a-tag", "barrier"}
# Rows that use JAX's ordered effect.
IN_PROGRAM_ORDER = ON_ORDERED | {"allgatherv", "gatherv", "scatterv", "alltoallv"}
# Rows whose ranks compile different programs.
DIFFER_BY_RANK = IN_PROGRAM_ORDER - {"ordered-bcast", "ordered-allreduce"}
# A receive with ANY_SOURCE needs a non-empty message.
NEVER_EMPTY = frozenset({"from-anybody"})
BY_MPI = frozenset(arguments.MPI_COLLECTIVES)
_LAX = {
    "lax.psum": "allreduce",
    "lax.pmean": "allreduce",
    "lax.pmax": "allreduce",
    "lax.pmin": "allreduce",
    "lax.all_gather": "allgather",
    "lax.psum_scatter": "reduce_scatter",
    "lax.all_to_all": "alltoall",
    "lax.ragged_all_to_all": "ragged_alltoall",
    "lax.ppermute": "permute",
    "lax.pbroadcast": "bcast",
}


def collective(name: str) -> str:
    """Returns the engine's collective for a row."""
    kind = name.split("-")[0]
    return _LAX.get(kind, kind)


def _kind_of_shape(row: Operation) -> str:
    n, own = 5, row.shape(5)
    if own == operations.BLOCK:
        return "any"
    if own == (n, *operations.BLOCK):
        return "per rank"
    return "rows" if row.name.endswith("v") or "ragged" in row.name else "fixed"


SHAPES = {name: _kind_of_shape(row) for name, row in ROWS.items()}
# Rows of a single call, with a non-blocking form.
STARTED = frozenset(
    name
    for name in ROWS.keys() - WITHOUT_OPTIONS
    if not name.startswith("lax.") and collective(name) in _OPERATIONS
)
# Rows whose result has the shape of the operand, so that another row can use it.
KEEPS_SHAPE = frozenset(
    name
    for name, kind in SHAPES.items()
    if kind == "any" and collective(name) not in ("allgather", "gather")
)


def shaped(name: str, trailing: tuple[int, ...]) -> Operation:
    """Returns the row with operands of these dimensions after its fixed ones."""
    row, kind = ROWS[name], SHAPES[name]
    if kind == "fixed":
        return row
    if kind == "any":
        return dataclasses.replace(row, shape=lambda n: trailing)
    return dataclasses.replace(row, shape=lambda n: (row.shape(n)[0], *trailing))

"""The table of operations: calls, and definitions in NumPy.

Definitions map the values of all ranks, stacked along axis 0, to the results of all ranks, stacked.
A new operation needs a new row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxccomp as jcc
from contract import data
from contract.places import Place

Array = Any
BLOCK = (2, 3)


@dataclasses.dataclass(frozen=True)
class Operation:
    """One row.

    Attributes:
      name: of the row, used in names of tests.
      call: the operation, with the calling rank's operand.
      definition: maps the number of ranks and all operands to all results.
      shape: of a rank's operand, for n ranks.
      dtypes: the supported ones; ``dtype`` is used to test transforms.
      linear: whether it has derivatives. Otherwise differentiation raises an error with its name.
      moves: whether values are only moved, so that every bit must be kept.
      same: whether all ranks get the same result; then its type is invariant under ``check_vma``.
      values: keyword arguments of `data.small_integers`, for n ranks.
      ulps: the allowed error; 0: none.
      styles: "axis" (inside shard_map and pmap) and "process" (between processes).
      alike: whether another row differs only in the reduction kernel, so that this one is not
        tested in every context.
    """

    name: str
    call: Callable[[Place, Array], Array]
    definition: Callable[[int, np.ndarray], np.ndarray]
    shape: Callable[[int], tuple[int, ...]] = lambda n: BLOCK
    dtypes: tuple[str, ...] = data.MOVED
    dtype: str = "float32"
    linear: bool = True
    moves: bool = False
    same: bool = False
    values: Callable[[int], dict[str, int]] = lambda n: {}
    ulps: int = 0
    styles: tuple[str, ...] = ("axis", "process")
    alike: bool = False

    def inputs(self, n: int, seed: int, dtype: str | None = None) -> np.ndarray:
        """Returns the stacked operands of n ranks."""
        shape = (n, *self.shape(n))
        return data.small_integers(shape, dtype or self.dtype, seed, **self.values(n))

    def expected(self, x: np.ndarray) -> np.ndarray:
        """Returns the stacked results in the type of ``x``, computed in a wider type."""
        wide = x
        if not self.moves and jnp.issubdtype(x.dtype, jnp.floating):
            wide = x.astype(np.float64)
        result = np.asarray(self.definition(x.shape[0], wide))
        return result if self.moves else result.astype(x.dtype)

    def transposed(self, w: np.ndarray) -> np.ndarray:
        """Returns the transpose of the definition, computed with unit vectors."""
        n = w.shape[0]
        shape = (n, *self.shape(n))
        result = np.zeros(int(np.prod(shape)))
        for i in range(result.size):
            unit = np.zeros(result.size)
            unit[i] = 1
            result[i] = np.sum(self.definition(n, unit.reshape(shape)) * w)
        return result.reshape(shape).astype(w.dtype)


# --- parts of definitions and calls --------------------------------------------------------------


def _root(n: int) -> int:
    return n - 1


def _rows(n: int) -> list[int]:
    """Returns the rows of each rank, for the v-variants; some ranks have none."""
    return [2, 0, 3, 1, 1, 0, 2, 1][:n]


def _matrix(n: int) -> np.ndarray:
    """Returns the rows from each rank to each rank, for alltoallv; some are 0."""
    source, destination = np.indices((n, n))
    return (2 * source + 3 * destination + 1) % 4


def _ring(n: int) -> list[int]:
    return [(rank + 1) % n for rank in range(n)]


def _broken_ring(n: int) -> list[int | None]:
    return [rank + 1 if rank + 1 < n else None for rank in range(n)]


def _everywhere(value: Callable[[int, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda n, x: np.stack([value(n, x)] * n)


def _at_root(value: Callable[[int, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    def definition(n: int, x: np.ndarray) -> np.ndarray:
        there = value(n, x)
        result = np.zeros((n, *there.shape), there.dtype)
        result[_root(n)] = there
        return result

    return definition


def _filled(blocks: list[np.ndarray], length: int) -> np.ndarray:
    result = np.zeros((len(blocks), length, *blocks[0].shape[1:]), blocks[0].dtype)
    for rank, block in enumerate(blocks):
        result[rank, : len(block)] = block
    return result


def _joined(n: int, x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[rank, :count] for rank, count in enumerate(_rows(n))])


def _scattered(n: int, x: np.ndarray) -> np.ndarray:
    blocks = np.split(x[_root(n)], np.cumsum(_rows(n))[:-1])
    return _filled(blocks, max(_rows(n)))


def _exchanged(n: int, x: np.ndarray) -> np.ndarray:
    matrix = _matrix(n)
    parts = [np.split(x[i], np.cumsum(matrix[i]))[:n] for i in range(n)]
    received = [np.concatenate([parts[i][j] for i in range(n)]) for j in range(n)]
    return _filled(received, int(matrix.sum(0).max()))


def _moved(destinations: Callable[[int], list[Any]]) -> Callable[..., np.ndarray]:
    def definition(n: int, x: np.ndarray) -> np.ndarray:
        result = np.zeros_like(x)
        for source, destination in enumerate(destinations(n)):
            if destination is not None:
                result[destination] = x[source]
        return result

    return definition


def _sources(destinations: list[Any]) -> list[int | None]:
    ranks = range(len(destinations))
    return [destinations.index(r) if r in destinations else None for r in ranks]


def _prefix(
    reduce: np.ufunc, *, identity: int | float | None = None
) -> Callable[[int, np.ndarray], np.ndarray]:
    """Returns an inclusive scan, or an exclusive one if ``identity`` is given."""

    def definition(n: int, x: np.ndarray) -> np.ndarray:
        result = reduce.accumulate(x, axis=0, dtype=x.dtype)
        if identity is None:
            return result
        return np.concatenate([np.full_like(x[:1], identity), result[:-1]])

    return definition


def _alltoallv(place: Place, x: Array) -> Array:
    matrix = _matrix(place.n)
    x = place.own_rows(x, matrix.sum(1))
    y = jcc.alltoallv(x, matrix.tolist(), **place.how)
    return place.filled(y, int(matrix.sum(0).max()))


def _ragged(place: Place, x: Array) -> Array:
    matrix = jnp.asarray(_matrix(place.n), jnp.int32)
    rank = lax.axis_index(place.how["axis_name"])
    output = jnp.zeros((int(_matrix(place.n).sum(0).max()), *x.shape[1:]), x.dtype)
    to, by = matrix[rank], matrix[:, rank]
    return jcc.lax.ragged_all_to_all(
        x,
        output,
        jnp.cumsum(to) - to,
        to,
        (jnp.cumsum(matrix, axis=0) - matrix)[rank],
        by,
        **place.how,
    )


def _send_and_recv(place: Place, x: Array) -> Array:
    """Every rank sends to the next and adds the received values, in an order without deadlock."""
    how = {"comm": place.how["comm"].ordered()}
    y = x
    if place.rank + 1 < place.n:
        x = jcc.send(x, dest=place.rank + 1, **how)
        y = x
    if place.rank > 0:
        y = y + jcc.recv(x, source=place.rank - 1, **how)
    return y


def _in_program_order(operation: Callable[..., Array], **arguments: Any) -> Callable[..., Array]:
    return lambda place, x: operation(x, comm=place.how["comm"].ordered(), **arguments)


def _named(operation: Callable[..., Array], *positional: Any, **arguments: Any) -> Callable:
    """Returns the call of a function of `jaxccomp.lax`, whose second argument is the axis."""

    def call(place: Place, x: Array) -> Array:
        how = dict(place.how)
        return operation(x, how.pop("axis_name"), *positional, **arguments, **how)

    return call


def _reductions(
    make: Callable[[str, np.ufunc], dict[str, Any]], *, alike: tuple[str, ...] = ()
) -> list[Operation]:
    """Returns a row per reduction."""
    multiples = {"values": lambda n: {"step": n}}  # makes the mean of n values exact
    signs = {"values": lambda n: {"low": -1, "high": 1}}
    rows = [
        ("sum", np.add, data.SUMMED, {}),
        ("mean", np.add, data.AVERAGED, multiples),
        ("prod", np.multiply, data.SUMMED, {"linear": False, **signs}),
        ("min", np.minimum, data.ORDERED, {"linear": False}),
        ("max", np.maximum, data.ORDERED, {"linear": False}),
        ("and", np.bitwise_and, data.BITWISE, {"linear": False, "dtype": "int32"}),
        ("or", np.bitwise_or, data.BITWISE, {"linear": False, "dtype": "int32"}),
        ("xor", np.bitwise_xor, data.BITWISE, {"linear": False, "dtype": "int32"}),
    ]
    return [
        Operation(**make(op, ufunc), dtypes=dtypes, alike=op in alike, **more)
        for op, ufunc, dtypes, more in rows
    ]


def _reduced(op: str, ufunc: np.ufunc) -> Callable[[int, np.ndarray], np.ndarray]:
    def value(n: int, x: np.ndarray) -> np.ndarray:
        result = ufunc.reduce(x, axis=0, dtype=x.dtype)
        return result / n if op == "mean" else result

    return value


def _per_rank(n: int) -> tuple[int, ...]:
    return (n, *BLOCK)


_AXIS = {"styles": ("axis",)}
_PROCESS = {"styles": ("process",)}
_SUM = {"dtypes": data.SUMMED}
_ALIKE = ("prod", "min", "and", "or", "xor")

# --- the table -----------------------------------------------------------------------------------

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "bcast",
        lambda place, x: jcc.bcast(x, root=_root(place.n), **place.how),
        _everywhere(lambda n, x: x[_root(n)]),
        moves=True,
        same=True,
    ),
    Operation(
        "bcast-ref",
        lambda place, x: jcc.bcast(
            x, root=_root(place.n), ref=jnp.ones_like(x), **(place.how | {"codec": "lossless"})
        ),
        _everywhere(lambda n, x: x[_root(n)]),
        moves=True,
        same=True,
    ),
    *_reductions(
        lambda op, ufunc: {
            "name": f"allreduce-{op}",
            "call": lambda place, x: jcc.allreduce(x, op, **place.how),
            "definition": _everywhere(_reduced(op, ufunc)),
            "same": True,
        },
        alike=_ALIKE,
    ),
    *_reductions(
        lambda op, ufunc: {
            "name": f"reduce-{op}",
            "call": lambda place, x: jcc.reduce(x, op, root=_root(place.n), **place.how),
            "definition": _at_root(_reduced(op, ufunc)),
        },
        alike=("max", *_ALIKE),
    ),
    *_reductions(
        lambda op, ufunc: {
            "name": f"reduce_scatter-{op}",
            "call": lambda place, x: jcc.reduce_scatter(x, op, **place.how),
            "definition": _reduced(op, ufunc),
            "shape": _per_rank,
        },
        alike=("max", *_ALIKE),
    ),
    Operation(
        "allgather",
        lambda place, x: jcc.allgather(x, **place.how),
        _everywhere(lambda n, x: x),
        moves=True,
        same=True,
    ),
    Operation(
        "gather",
        lambda place, x: jcc.gather(x, root=_root(place.n), **place.how),
        _at_root(lambda n, x: x),
        moves=True,
    ),
    Operation(
        "scatter",
        lambda place, x: jcc.scatter(x, root=_root(place.n), **place.how),
        lambda n, x: x[_root(n)],
        shape=_per_rank,
        moves=True,
    ),
    Operation(
        "alltoall",
        lambda place, x: jcc.alltoall(x, **place.how),
        lambda n, x: x.swapaxes(0, 1),
        shape=_per_rank,
        moves=True,
    ),
    Operation(
        "allgatherv",
        lambda place, x: jcc.allgatherv(
            place.own_rows(x, _rows(place.n)), _rows(place.n), **place.how
        ),
        _everywhere(_joined),
        shape=lambda n: (max(_rows(n)), 3),
        moves=True,
        same=True,
    ),
    Operation(
        "gatherv",
        lambda place, x: jcc.gatherv(
            place.own_rows(x, _rows(place.n)), _rows(place.n), root=_root(place.n), **place.how
        ),
        _at_root(_joined),
        shape=lambda n: (max(_rows(n)), 3),
        moves=True,
    ),
    Operation(
        "scatterv",
        lambda place, x: place.filled(
            jcc.scatterv(x, _rows(place.n), root=_root(place.n), **place.how), max(_rows(place.n))
        ),
        _scattered,
        shape=lambda n: (sum(_rows(n)), 3),
        moves=True,
    ),
    Operation(
        "alltoallv",
        _alltoallv,
        _exchanged,
        shape=lambda n: (int(_matrix(n).sum(1).max()), 3),
        moves=True,
    ),
    Operation("scan-sum", lambda place, x: jcc.scan(x, **place.how), _prefix(np.add), **_SUM),
    Operation(
        "scan-prod",
        lambda place, x: jcc.scan(x, "prod", **place.how),
        _prefix(np.multiply),
        dtypes=data.SUMMED,
        linear=False,
        values=lambda n: {"low": -1, "high": 1},
        alike=True,
    ),
    Operation(
        "scan-max",
        lambda place, x: jcc.scan(x, "max", **place.how),
        _prefix(np.maximum),
        dtypes=data.ORDERED,
        linear=False,
    ),
    Operation(
        "scan-xor",
        lambda place, x: jcc.scan(x, "xor", **place.how),
        _prefix(np.bitwise_xor),
        dtypes=data.BITWISE,
        dtype="int32",
        linear=False,
        alike=True,
    ),
    Operation(
        "exscan-sum",
        lambda place, x: jcc.exscan(x, **place.how),
        _prefix(np.add, identity=0),
        **_SUM,
    ),
    Operation(
        "exscan-prod",
        lambda place, x: jcc.exscan(x, "prod", **place.how),
        _prefix(np.multiply, identity=1),
        dtypes=data.SUMMED,
        linear=False,
        values=lambda n: {"low": -1, "high": 1},
        alike=True,
    ),
    Operation(
        "exscan-min",
        lambda place, x: jcc.exscan(x, "min", **place.how),
        _prefix(np.minimum, identity=np.inf),
        dtypes=data.FLOATS,
        linear=False,
    ),
    Operation(
        "exscan-and",
        lambda place, x: jcc.exscan(x, "and", **place.how),
        _prefix(np.bitwise_and, identity=-1),
        dtypes=("int8", "int16", "int32", "int64"),
        dtype="int32",
        linear=False,
        alike=True,
    ),
    Operation("barrier", lambda place, x: jcc.barrier(x, **place.how), lambda n, x: x, moves=True),
    Operation(
        "sendrecv",
        lambda place, x: jcc.sendrecv(x, _ring(place.n), _sources(_ring(place.n)), **place.how),
        _moved(_ring),
        moves=True,
    ),
    Operation(
        "sendrecv-open",
        lambda place, x: jcc.sendrecv(
            x, _broken_ring(place.n), _sources(_broken_ring(place.n)), **place.how
        ),
        _moved(_broken_ring),
        moves=True,
        alike=True,
    ),
    # Programs that differ by rank, matched in program order.
    Operation(
        "send-recv",
        _send_and_recv,
        lambda n, x: x + _moved(_broken_ring)(n, x),
        dtypes=data.SUMMED,
        **_PROCESS,
    ),
    Operation(
        "ordered-bcast",
        _in_program_order(jcc.bcast),
        _everywhere(lambda n, x: x[0]),
        moves=True,
        **_PROCESS,
    ),
    Operation(
        "ordered-allreduce",
        _in_program_order(jcc.allreduce),
        _everywhere(lambda n, x: x.sum(0, x.dtype)),
        **_SUM,
        **_PROCESS,
    ),
    # Functions with the names of jax.lax.
    Operation(
        "lax.psum",
        _named(jcc.lax.psum),
        _everywhere(lambda n, x: x.sum(0, x.dtype)),
        same=True,
        **_SUM,
        **_AXIS,
    ),
    Operation(
        "lax.pmean",
        _named(jcc.lax.pmean),
        _everywhere(lambda n, x: x.sum(0, x.dtype) / n),
        dtypes=data.AVERAGED,
        values=lambda n: {"step": n},
        same=True,
        **_AXIS,
    ),
    Operation(
        "lax.pmax",
        _named(jcc.lax.pmax),
        _everywhere(lambda n, x: x.max(0)),
        dtypes=data.ORDERED,
        linear=False,
        same=True,
        **_AXIS,
    ),
    Operation(
        "lax.pmin",
        _named(jcc.lax.pmin),
        _everywhere(lambda n, x: x.min(0)),
        dtypes=data.ORDERED,
        linear=False,
        same=True,
        **_AXIS,
        alike=True,
    ),
    Operation(
        "lax.all_gather",
        _named(jcc.lax.all_gather, axis=1),
        _everywhere(lambda n, x: x.swapaxes(0, 1)),
        moves=True,
        **_AXIS,
    ),
    Operation(
        "lax.all_gather-tiled",
        _named(jcc.lax.all_gather, tiled=True),
        _everywhere(lambda n, x: x.reshape(n * x.shape[1], *x.shape[2:])),
        moves=True,
        **_AXIS,
        alike=True,
    ),
    Operation(
        "lax.psum_scatter",
        _named(jcc.lax.psum_scatter),
        lambda n, x: x.sum(0, x.dtype),
        shape=_per_rank,
        **_SUM,
        **_AXIS,
    ),
    Operation(
        "lax.psum_scatter-tiled",
        _named(jcc.lax.psum_scatter, scatter_dimension=1, tiled=True),
        lambda n, x: np.stack(np.split(x.sum(0, x.dtype), n, axis=1)),
        shape=lambda n: (2, 2 * n),
        **_SUM,
        **_AXIS,
        alike=True,
    ),
    Operation(
        "lax.all_to_all",
        _named(jcc.lax.all_to_all, 1, 0),
        lambda n, x: np.moveaxis(x, 2, 0),
        shape=lambda n: (3, n),
        moves=True,
        **_AXIS,
    ),
    Operation(
        "lax.all_to_all-tiled",
        _named(jcc.lax.all_to_all, 0, 1, tiled=True),
        lambda n, x: np.stack(
            [np.concatenate([x[i, 2 * j : 2 * j + 2] for i in range(n)], axis=1) for j in range(n)]
        ),
        shape=lambda n: (2 * n, 3),
        moves=True,
        **_AXIS,
        alike=True,
    ),
    Operation(
        "lax.ragged_all_to_all",
        _ragged,
        _exchanged,
        shape=lambda n: (int(_matrix(n).sum(1).max()), 3),
        moves=True,
        **_AXIS,
    ),
    Operation(
        "lax.ppermute",
        lambda place, x: _named(
            jcc.lax.ppermute, [(i, j) for i, j in enumerate(_broken_ring(place.n)) if j is not None]
        )(place, x),
        _moved(_broken_ring),
        moves=True,
        **_AXIS,
    ),
    Operation(
        "lax.pbroadcast",
        lambda place, x: _named(jcc.lax.pbroadcast, _root(place.n))(place, x),
        _everywhere(lambda n, x: x[_root(n)]),
        moves=True,
        **_AXIS,
    ),
)


def of_style(style: str) -> tuple[Operation, ...]:
    """Returns the rows of a calling style."""
    return tuple(row for row in OPERATIONS if style in row.styles)

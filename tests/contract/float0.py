"""Leaves of dtype float0 in every operation: passed through, with the shape of the result.

``jax.grad`` with ``allow_int=True`` gives such leaves. They have a shape and no values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from contract.places import Place

Tree = Any
Call = Callable[[Place, Tree], Tree]


def _feedback(operation: Callable[..., Any]) -> Call:
    def call(place: Place, x: Tree) -> Tree:
        residual = {name: jnp.zeros_like(leaf) for name, leaf in x.items()}
        result, lost = operation(x, residual, **place.how)
        assert {name: leaf.dtype for name, leaf in lost.items()} == {
            name: leaf.dtype for name, leaf in x.items()
        }
        return result

    return call


def _exchange(place: Place, x: Tree) -> Tree:
    ring = [(rank + 1) % place.n for rank in range(place.n)]
    back = [(rank - 1) % place.n for rank in range(place.n)]
    return jcc.sendrecv(x, ring, back, **place.how)


def _exchange_like(place: Place, x: Tree) -> Tree:
    ordered = place.how["comm"].ordered()
    to, by = (place.rank + 1) % place.n, (place.rank - 1) % place.n
    return jcc.sendrecv(x, to, by, like=x, comm=ordered)


def _send(place: Place, x: Tree) -> Tree:
    """Every rank sends to itself, and returns the result of `jaxccomp.send`."""
    ordered = place.how["comm"].ordered()
    sent = jcc.send(x, place.rank, comm=ordered)
    jcc.recv(x, place.rank, comm=ordered)
    return sent


def _recv(place: Place, x: Tree) -> Tree:
    ordered = place.how["comm"].ordered()
    jcc.send(x, place.rank, comm=ordered)
    return jcc.recv(x, place.rank, comm=ordered)


def _started(place: Place, x: Tree) -> Tree:
    return jcc.nonblocking(jcc.allreduce)(x, "mean", **place.how).wait(after=x)


def _square(n: int) -> list[list[int]]:
    return [[1] * n] * n


# By operation of `jaxccomp.ops`; between processes and along an axis.
OPERATIONS: dict[str, Call] = {
    "bcast": lambda place, x: jcc.bcast(x, **place.how),
    "allreduce": lambda place, x: jcc.allreduce(x, "mean", **place.how),
    "reduce": lambda place, x: jcc.reduce(x, **place.how),
    "allgather": lambda place, x: jcc.allgather(x, **place.how),
    "gather": lambda place, x: jcc.gather(x, **place.how),
    "scatter": lambda place, x: jcc.scatter(x, **place.how),
    "reduce_scatter": lambda place, x: jcc.reduce_scatter(x, "max", **place.how),
    "alltoall": lambda place, x: jcc.alltoall(x, **place.how),
    "allgatherv": lambda place, x: jcc.allgatherv(x, [place.n] * place.n, **place.how),
    "gatherv": lambda place, x: jcc.gatherv(x, [place.n] * place.n, **place.how),
    "scatterv": lambda place, x: jcc.scatterv(x, [1] * place.n, **place.how),
    "alltoallv": lambda place, x: jcc.alltoallv(x, _square(place.n), **place.how),
    "scan": lambda place, x: jcc.scan(x, **place.how),
    "exscan": lambda place, x: jcc.exscan(x, **place.how),
    "barrier": lambda place, x: jcc.barrier(x, **place.how),
    "sendrecv": _exchange,
    "allreduce_with_feedback": _feedback(jcc.allreduce_with_feedback),
    "reduce_scatter_with_feedback": _feedback(jcc.reduce_scatter_with_feedback),
    "nonblocking": _started,
}
BETWEEN_PROCESSES: dict[str, Call] = {
    "send": _send,
    "recv": _recv,
    "sendrecv-like": _exchange_like,
}
# By operation of `jaxccomp.lax`.
ALONG_AN_AXIS: dict[str, Call] = {
    "psum": lambda place, x: jcc.lax.psum(x, **place.how),
    "psum-of-dimensions": lambda place, x: jcc.lax.psum(x, (0, place.how["axis_name"])),
    "pmean": lambda place, x: jcc.lax.pmean(x, **place.how),
    "pmax": lambda place, x: jcc.lax.pmax(x, **place.how),
    "pmin": lambda place, x: jcc.lax.pmin(x, **place.how),
    "all_gather": lambda place, x: jcc.lax.all_gather(x, axis=1, tiled=True, **place.how),
    "psum_scatter": lambda place, x: jcc.lax.psum_scatter(x, tiled=True, **place.how),
    "all_to_all": lambda place, x: jcc.lax.all_to_all(
        x, split_axis=0, concat_axis=1, tiled=True, **place.how
    ),
    "ppermute": lambda place, x: jcc.lax.ppermute(x, perm=[(0, 0)], **place.how),
    "pbroadcast": lambda place, x: jcc.lax.pbroadcast(x, source=0, **place.how),
    "pbroadcast-computed": lambda place, x: jcc.lax.pbroadcast(
        x, source=jax.lax.axis_index(place.how["axis_name"]) * 0, **place.how
    ),
}


def check(place: Place, call: Call) -> None:
    """Gives an operation a float0 leaf beside values and alone, and compares with values alone."""
    x = np.arange(place.n * place.n * 3, dtype=np.float32).reshape(place.n, place.n, 3)

    def program(x: Any, flag: Any) -> tuple[Any, Any]:
        del flag
        none = np.zeros(x.shape, jax.dtypes.float0)
        right = call(place, {"x": x})["x"]
        both = call(place, {"x": x, "i": none})
        assert (both["i"].dtype, both["i"].shape) == (none.dtype, right.shape)
        alone = call(place, {"i": none})
        assert (alone["i"].dtype, alone["i"].shape) == (none.dtype, right.shape)
        return right, both["x"]

    right, got = place.run(program, x)
    np.testing.assert_array_equal(right, got)

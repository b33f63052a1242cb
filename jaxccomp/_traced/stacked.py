"""Local collectives on stacked arrays: row i along axis 0 has the values of rank i.

They implement operations along an axis of ``vmap``, and operations of backend="xla" that gather all
rows first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxccomp._call import Call, rows
from jaxccomp._traced import wide

Array = Any

_BINARY = {
    "sum": lax.add,
    "mean": lax.add,
    "prod": lax.mul,
    "min": lax.min,
    "max": lax.max,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
}


def run(call: Call, stacked: Array) -> tuple[Array, bool]:
    """Run ``call`` for all ranks of an axis.

    Args:
      call: the operation; its groups partition the rows.
      stacked: shape (ranks, *operand).

    Returns:
      The results, and whether all ranks have the same result; then it is not stacked.
    """
    if call.groups is None:
        return _run_group(call, stacked)
    results = [None] * stacked.shape[0]
    for group in call.groups:
        # Groups may differ in size.
        result, same = _run_group(call.replace(size=len(group)), stacked[np.array(group)])
        for place, rank in enumerate(group):
            results[rank] = result if same else result[place]
    return jnp.stack(results), False


def reduce_rows(op: str, stacked: Array) -> Array:
    """Reduce along axis 0; half types are summed in float32 and rounded once."""
    ranks = stacked.shape[0]
    values = wide.enter(stacked, op, ranks)
    return wide.leave(_reduce_rows(op, values), op, stacked.dtype, ranks)


def _reduce_rows(op: str, stacked: Array) -> Array:
    dtype = stacked.dtype
    if op in ("sum", "mean"):
        total = jnp.sum(stacked, axis=0, dtype=dtype)
        return (total / stacked.shape[0] if op == "mean" else total).astype(dtype)
    if op in ("min", "max"):
        return (jnp.min if op == "min" else jnp.max)(stacked, axis=0)
    return lax.reduce(stacked, jnp.asarray(identity(op, dtype)), _BINARY[op], (0,))


def identity(op: str, dtype: Any) -> np.ndarray:
    """Return the identity element of ``op``, which is exscan's result on the first rank."""
    dtype = jnp.dtype(dtype)
    if op in ("sum", "or", "xor"):
        value: Any = 0
    elif op == "prod":
        value = 1
    elif op == "and":
        value = ~np.zeros((), dtype)
    elif dtype == jnp.bool_:
        value = op == "min"
    elif jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        value = info.max if op == "min" else info.min
    else:
        value = np.inf if op == "min" else -np.inf
    return np.asarray(value, dtype)


def prefix(call: Call, stacked: Array) -> Array:
    """Return inclusive or exclusive prefix reductions along axis 0."""
    op, dtype, ranks = call.reduce_op, stacked.dtype, stacked.shape[0]
    stacked = wide.enter(stacked, op, ranks)
    exclusive = call.collective == "exscan"
    if exclusive:
        edge = jnp.full((1, *stacked.shape[1:]), identity(op, stacked.dtype))
        parts = [stacked[1:], edge] if call.reverse else [edge, stacked[:-1]]
        stacked = jnp.concatenate(parts)
    reduced = lax.associative_scan(_BINARY[op], stacked, reverse=call.reverse)
    return wide.leave(reduced, op, dtype, ranks)


def split_rows(call: Call, x: Array) -> Array:
    """Return the blocks of ``counts`` rows, each padded with zeros to the largest, stacked."""
    longest = max(call.counts)
    ends = itertools.accumulate(call.counts)
    blocks = [x[end - n : end] for end, n in zip(ends, call.counts, strict=True)]
    return jnp.stack([fill(block, longest) for block in blocks])


def join_rows(call: Call, stacked: Array) -> Array:
    """Invert `split_rows`."""
    return jnp.concatenate([block[:n] for block, n in zip(stacked, call.counts, strict=True)])


def fill(x: Array, length: int) -> Array:
    """Pad ``x`` with zero rows to ``length``."""
    return jnp.pad(x, [(0, length - x.shape[0])] + [(0, 0)] * (x.ndim - 1))


def take(x: Array, indices: Array, real: Array) -> Array:
    """Return the rows ``indices`` of ``x``; zeros where ``real`` is false."""
    real = real.reshape(*real.shape, *[1] * (x.ndim - 1))
    return jnp.where(real, x[indices], jnp.zeros((), x.dtype))


def cut_ragged(x: Array, offsets: Array, sizes: Array) -> Array:
    """Return the slices of a ragged array, each padded with zeros to ``x``'s length, stacked."""
    within = jnp.arange(x.shape[0])
    index = jnp.clip(offsets[:, None] + within, 0, x.shape[0] - 1)
    return take(x, index, within < sizes[:, None])


def place_ragged(x: Array, blocks: Array, offsets: Array, sizes: Array) -> Array:
    """Write the first ``sizes`` rows of each block to ``x`` at ``offsets``."""
    within = jnp.arange(blocks.shape[1])
    # Other rows get a place outside of x, and are dropped.
    place = jnp.where(within < sizes[:, None], offsets[:, None] + within, x.shape[0])
    return x.at[place.reshape(-1)].set(blocks.reshape(-1, *x.shape[1:]), mode="drop")


def exchange_rows(call: Call, stacked: Array) -> Array:
    """Run alltoallv on all ranks' rows."""
    n, longest = call.size, rows(call.replace(comm=None))[1]
    counts = np.array(call.counts).reshape(n, n)
    starts = np.cumsum(counts, axis=1) - counts
    results = []
    for rank in range(n):
        parts = [stacked[i, starts[i, rank] : starts[i, rank] + counts[i, rank]] for i in range(n)]
        results.append(fill(jnp.concatenate(parts), longest))
    return jnp.stack(results)


def _run_group(call: Call, x: Array) -> tuple[Array, bool]:
    return _TABLE[call.collective](call, x)


def _at_root(call: Call, value: Array) -> Array:
    return jnp.zeros((call.size, *value.shape), value.dtype).at[call.root].set(value)


def _permute(call: Call, x: Array) -> Array:
    result = jnp.zeros_like(x)
    for source, destination in zip(call.pairs[::2], call.pairs[1::2], strict=True):
        result = result.at[destination].set(x[source])
    return result


def _sendrecv(call: Call, x: Array) -> Array:
    # Only for communicators of one process, which may send to itself.
    return x if call.pairs == (0, 0) else jnp.zeros_like(x)


def _reduce(call: Call, x: Array) -> Array:
    return reduce_rows(call.reduce_op, x)


_TABLE: dict[str, Callable[[Call, Array], tuple[Array, bool]]] = {
    "bcast": lambda call, x: (x[call.root], True),
    "allreduce": lambda call, x: (_reduce(call, x), True),
    "reduce": lambda call, x: (_at_root(call, _reduce(call, x)), False),
    "allgather": lambda call, x: (x, True),
    "gather": lambda call, x: (_at_root(call, x), False),
    "scatter": lambda call, x: (x[call.root], False),
    "reduce_scatter": lambda call, x: (_reduce(call, x), False),
    "alltoall": lambda call, x: (jnp.swapaxes(x, 0, 1), False),
    "allgatherv": lambda call, x: (join_rows(call, x), True),
    "gatherv": lambda call, x: (_at_root(call, join_rows(call, x)), False),
    "scatterv": lambda call, x: (split_rows(call, x[call.root]), False),
    "reduce_scatterv": lambda call, x: (split_rows(call, _reduce(call, x)), False),
    "alltoallv": lambda call, x: (exchange_rows(call, x), False),
    "scan": lambda call, x: (prefix(call, x), False),
    "exscan": lambda call, x: (prefix(call, x), False),
    "permute": lambda call, x: (_permute(call, x), False),
    "barrier": lambda call, x: (x, False),
    "sendrecv": lambda call, x: (_sendrecv(call, x), False),
    "send": lambda call, x: (x, False),
    "recv": lambda call, x: (x, False),
}

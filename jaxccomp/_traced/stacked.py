"""Local collectives on stacked arrays: row i along axis 0 has the values of rank i.

They implement operations along an axis of ``vmap``, and operations of backend="xla" that gather all
rows first.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxccomp._call import Call, rows

# --- The dtypes in which reductions are computed, if they differ from the operands' ---------------
# float16 and bfloat16 are added and multiplied in float32, and rounded once. Types without
# arithmetic (float8, float4, int4, int2) are converted to float32 or an 8-bit integer, which hold
# them exactly. An integer that overflows has the same low bits in 8 bits, so it wraps correctly.

Array = Any

_HALF_TYPES = ("float16", "bfloat16")
_ROUNDING_OPS = ("sum", "mean", "prod")
SUB_BYTE_INTEGERS = {
    "int2": jnp.int8,
    "int4": jnp.int8,
    "uint2": jnp.uint8,
    "uint4": jnp.uint8,
}


def is_half(dtype: Any) -> bool:
    """Return whether a dtype is float16 or bfloat16."""
    return jnp.dtype(dtype).name in _HALF_TYPES


@functools.cache
def of_small(dtype: Any) -> Any:
    """Return the dtype for reductions of a type without arithmetic; None for other types."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 1:
        return jnp.dtype(jnp.float32)
    wide = SUB_BYTE_INTEGERS.get(dtype.name)
    return None if wide is None else jnp.dtype(wide)


def of_reduction(op: str, dtype: Any) -> Any:
    """Return the dtype in which a reduction is computed: usually ``dtype`` itself."""
    if is_half(dtype) and op in _ROUNDING_OPS:
        return jnp.dtype(jnp.float32)
    return of_small(dtype) or jnp.dtype(dtype)


def enter(x: Array, op: str, ranks: int) -> Array:
    """Convert ``x`` for a reduction of ``ranks`` values.

    bfloat16 has the range of float32, so partial sums could overflow. Values of sums are therefore
    divided by a power of two, which is exact except for subnormals; `leave` multiplies the result
    by it.
    """
    wide = x.astype(of_reduction(op, x.dtype))
    scale = _scale(op, x.dtype, ranks)
    return wide if scale == 1 else wide * np.float32(1 / scale)


def leave(reduced: Array, op: str, dtype: Any, ranks: int) -> Array:
    """Convert the result of a reduction of values of `enter` to ``dtype``."""
    if op in ("min", "max") and of_small(dtype) is not None:
        # The first rank of an exscan gets the wide dtype's identity element: clip it to the range.
        reduced = jnp.clip(reduced, *_range(dtype)).astype(reduced.dtype)
    scale = _scale(op, dtype, ranks)
    return (reduced if scale == 1 else reduced * np.float32(scale)).astype(dtype)


def _range(dtype: Any) -> tuple[Any, Any]:
    if not jnp.issubdtype(dtype, jnp.floating):
        integers = jnp.iinfo(dtype)
        return int(integers.min), int(integers.max)
    if np.isinf(np.asarray(np.inf, dtype).astype(np.float32)):
        return -np.inf, np.inf
    floats = jnp.finfo(dtype)
    return float(floats.min), float(floats.max)


def _scale(op: str, dtype: Any, ranks: int) -> int:
    """Return the power of two by which `enter` divides."""
    if jnp.dtype(dtype).name != "bfloat16" or op not in ("sum", "mean"):
        return 1
    return 1 << math.ceil(math.log2(max(ranks, 1)))


# --- Collectives ----------------------------------------------------------------------------------

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
        # Sizes of groups may differ.
        result, same = _run_group(call.replace(size=len(group)), stacked[np.array(group)])
        for place, rank in enumerate(group):
            results[rank] = result if same else result[place]
    return jnp.stack(results), False


def reduce_rows(op: str, stacked: Array) -> Array:
    """Reduce along axis 0; half types are summed in float32 and rounded once."""
    ranks = stacked.shape[0]
    values = enter(stacked, op, ranks)
    return leave(_reduce_rows(op, values), op, stacked.dtype, ranks)


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
        value = np.invert(np.zeros((), dtype))
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
    stacked = enter(stacked, op, ranks)
    exclusive = call.collective == "exscan"
    if exclusive:
        edge = jnp.full((1, *stacked.shape[1:]), identity(op, stacked.dtype))
        parts = [stacked[1:], edge] if call.reverse else [edge, stacked[:-1]]
        stacked = jnp.concatenate(parts)
    reduced = lax.associative_scan(_BINARY[op], stacked, reverse=call.reverse)
    return leave(reduced, op, dtype, ranks)


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
    # The other rows of a block get an index outside of ``x``, so `set` drops them.
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
    # Only communicators of one process run this; the process may send to itself.
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

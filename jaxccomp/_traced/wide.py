"""The dtypes in which reductions are computed, if they differ from the operands'.

float16 and bfloat16 are added and multiplied in float32, and rounded once. Types without arithmetic
(float8, float4, int4, int2) are converted to float32 or an 8-bit integer, which hold them exactly;
integers wrap alike.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

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
    """Return the dtype in which a reduction is computed: for most, ``dtype`` itself."""
    if is_half(dtype) and op in _ROUNDING_OPS:
        return jnp.dtype(jnp.float32)
    return of_small(dtype) or jnp.dtype(dtype)


def enter(x: Array, op: str, ranks: int) -> Array:
    """Convert ``x`` for a reduction of ``ranks`` values.

    bfloat16 has the range of float32, so partial sums could overflow: values of sums are divided by
    a power of two, which is exact. `leave` multiplies the result by it.
    """
    wide = x.astype(of_reduction(op, x.dtype))
    scale = _scale(op, x.dtype, ranks)
    return wide if scale == 1 else wide * np.float32(1 / scale)


def leave(reduced: Array, op: str, dtype: Any, ranks: int) -> Array:
    """Convert the result of a reduction of values of `enter` to ``dtype``."""
    if op in ("min", "max") and of_small(dtype) is not None:
        # The wide dtype's identity element, which the first rank of an exscan gets.
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

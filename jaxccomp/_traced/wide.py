"""The dtypes that reductions compute in, where that is not the operands' own.

float16 and bfloat16 are added and multiplied in float32, and rounded once. The types of one byte or
less (float8, float4, int4, int2) have no arithmetic of their own: float32 or an 8-bit integer holds
them exactly, and integers wrap alike.
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
    """Whether a dtype is float16 or bfloat16."""
    return jnp.dtype(dtype).name in _HALF_TYPES


@functools.cache
def of_small(dtype: Any) -> Any:
    """The dtype that any reduction of a type of one byte or less computes in; None for others."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 1:
        return jnp.dtype(jnp.float32)
    wide = SUB_BYTE_INTEGERS.get(dtype.name)
    return None if wide is None else jnp.dtype(wide)


def of_reduction(op: str, dtype: Any) -> Any:
    """The dtype that a reduction computes in: ``dtype`` itself for most."""
    if is_half(dtype) and op in _ROUNDING_OPS:
        return jnp.dtype(jnp.float32)
    return of_small(dtype) or jnp.dtype(dtype)


def enter(x: Array, op: str, ranks: int) -> Array:
    """``x`` as values that a reduction of ``ranks`` of them computes with.

    bfloat16 has the range of float32, which a partial sum may leave, so its sums are of values
    divided by a power of two, which is exact. `leave` multiplies again.
    """
    wide = x.astype(of_reduction(op, x.dtype))
    scale = _scale(op, x.dtype, ranks)
    return wide if scale == 1 else wide * np.float32(1 / scale)


def leave(reduced: Array, op: str, dtype: Any, ranks: int) -> Array:
    """The result of a reduction of what `enter` gave, rounded to ``dtype``."""
    if op in ("min", "max") and of_small(dtype) is not None:
        # What changes nothing in the wide dtype, which the first rank of an exscan gets.
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
    """The power of two that `enter` divides by."""
    if jnp.dtype(dtype).name != "bfloat16" or op not in ("sum", "mean"):
        return 1
    return 1 << math.ceil(math.log2(max(ranks, 1)))

"""Inputs with exact results, and bitwise comparison."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

BITS = ("bool",)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
# Types that are only moved, never added. (float8_e8m0fnu has no zero, which gather and others pad
# with.)
SMALL = (
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "int4",
    "uint4",
)

MOVED = BITS + INTEGERS + FLOATS + COMPLEX + SMALL
SUMMED = INTEGERS + FLOATS + COMPLEX
AVERAGED = FLOATS + COMPLEX
ORDERED = BITS + INTEGERS + FLOATS
BITWISE = BITS + INTEGERS


def small_integers(
    shape: tuple[int, ...], dtype: Any, seed: int, *, low: int = -3, high: int = 3, step: int = 1
) -> np.ndarray:
    """Returns multiples of ``step``, so small that sums and products are exact in any type."""
    dtype = jnp.dtype(dtype)
    rng = np.random.default_rng(seed)
    if not jnp.issubdtype(dtype, jnp.signedinteger) and not jnp.issubdtype(dtype, jnp.inexact):
        low, high = 0, min(high, 1 if dtype == jnp.bool_ else high)
    values = rng.integers(low, high + 1, size=shape) * step
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * rng.integers(low, high + 1, size=shape) * step
    return values.astype(dtype)


def any_bits(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    """Returns values with random bits, including infinities, NaN, -0.0 and extreme integers."""
    dtype = jnp.dtype(dtype)
    if dtype == jnp.bool_ or dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        return small_integers(shape, dtype, seed)
    size = int(np.prod(shape)) * dtype.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, size=size, dtype=np.uint8)
    values = bits.view(dtype).reshape(shape).copy()
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits > 8:
        special = [np.nan, -0.0, np.inf, -np.inf, float(jnp.finfo(dtype).smallest_subnormal)]
        flat = values.reshape(-1)
        flat[: len(special)] = np.array(special, dtype)[: flat.size]
    return values


def assert_same(actual: Any, expected: Any, *, bits: bool = False, ulps: int = 0) -> None:
    """Asserts equal trees of arrays: dtypes, shapes and values, with NaN equal to NaN.

    Args:
      actual: the computed values.
      expected: the correct values.
      bits: whether 0.0 and -0.0 differ, as for values that are only moved.
      ulps: the allowed difference in units in the last place.
    """
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, two in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        one, two = np.asarray(one), np.asarray(two)
        assert one.dtype == two.dtype, f"dtype {one.dtype}, should be {two.dtype}"
        assert one.shape == two.shape, f"shape {one.shape}, should be {two.shape}"
        if ulps:
            eps = float(jnp.finfo(two.dtype).eps)
            np.testing.assert_allclose(one, two, rtol=ulps * eps, atol=ulps * eps)
        elif not _same_bits(one, two):
            np.testing.assert_array_equal(_visible(one), _visible(two))
            assert not bits, "values are equal, but 0.0 and -0.0 are mixed up"


def _same_bits(one: np.ndarray, two: np.ndarray) -> bool:
    if jnp.issubdtype(one.dtype, jnp.complexfloating):
        return _same_bits(one.real.copy(), two.real.copy()) and _same_bits(
            one.imag.copy(), two.imag.copy()
        )
    as_bits = f"uint{one.dtype.itemsize * 8}"
    same = np.ascontiguousarray(one).view(as_bits) == np.ascontiguousarray(two).view(as_bits)
    if jnp.issubdtype(one.dtype, jnp.floating):
        with np.errstate(invalid="ignore"):  # some types warn about their own NaN
            same |= np.isnan(one) & np.isnan(two)
    return bool(np.all(same))


def _visible(x: np.ndarray) -> np.ndarray:
    """Converts to a type that NumPy can compare and print."""
    known = x.dtype.kind in "biufc" and x.dtype.name in np.sctypeDict
    return x if known else x.astype(np.float64)

"""Codecs that encode each value alone: unchanged, or in a narrower float type (bf16, fp16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxccomp._traced.codecs.codec import INFINITY, Array, Codec, Wire
from jaxccomp._traced.codecs.operators import bits_of, draw, magnitude_of


class Unchanged(Codec):
    """Returns values of all dtypes unchanged.

    With it, a reduction is composed as with other codecs: values are exchanged, reduced and
    gathered. The stage of the engine encodes them losslessly when it sends them.
    """

    def encode(self, x: Array, key: Array | None = None) -> Wire:
        return (x,)

    def decode(self, wire: Wire, shape: Sequence[int], dtype: Any, to: Any = None) -> Array:
        return wire[0].astype(to or dtype).reshape(shape)


class Cast(Codec):
    """Encodes to the bits of a narrow float type: of floats, XLA might keep excess precision."""

    dtypes = ("float32", "float64")

    def __init__(self, narrow: Any):
        self.narrow = narrow

    def _encode(self, x: Array, key: Array | None) -> Wire:
        narrow = _rounded_to_odd(x) if x.dtype == jnp.float64 else x
        narrow = lax.optimization_barrier(narrow.astype(self.narrow))
        return (lax.bitcast_convert_type(narrow, jnp.uint16),)

    def _decode(self, wire: Wire, count: int, dtype: Any) -> Array:
        return lax.bitcast_convert_type(wire[0], self.narrow).astype(dtype)


class StochasticBf16(Cast):
    """Rounds up or down at random, such that the expected result is the value.

    A random number is added to the bits that bfloat16 drops; the carry rounds up. The arithmetic is
    integer, so subnormals are not flushed. Finite values are clipped to the greatest bfloat16.
    """

    random = True

    def __init__(self) -> None:
        super().__init__(jnp.bfloat16)

    def _encode(self, x: Array, key: Array | None) -> Wire:
        x = x.astype(jnp.float32)
        magnitude = magnitude_of(x)
        up = (magnitude + draw(key, x.shape).astype(jnp.int32)) >> 16
        special = (magnitude >> 16) | (magnitude > INFINITY).astype(jnp.int32) << 6  # a quiet NaN
        code = jnp.where(magnitude < INFINITY, jnp.minimum(up, 0x7F7F), special)
        return ((code | (bits_of(x) >> 16 & 0x8000)).astype(jnp.uint16),)


def _rounded_to_odd(x: Array) -> Array:
    """Round float64 to float32 such that rounding again is the same as rounding once.

    Truncates, and sets the last bit if the truncation was inexact. NaN and infinity are unchanged.
    """
    near = x.astype(jnp.float32)
    back = near.astype(jnp.float64)
    bits = bits_of(near)
    truncated = jnp.where(jnp.abs(back) > jnp.abs(x), bits - 1, bits)
    odd = lax.bitcast_convert_type(truncated | 1, jnp.float32)
    return jnp.where((back == x) | jnp.isnan(x), near, odd)

"""What a codec of the traced plane is, and what codecs that code float32 share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

Array = Any
# What travels: arrays whose shapes and dtypes follow from those of the values alone.
Wire = tuple[Array, ...]
Options = Mapping[str, str]

REAL_FLOATS = ("float16", "bfloat16", "float32", "float64")
NAN = jnp.nan
INFINITY = 0x7F800000
LEAST_EXPONENT = 27  # 2^-100: scales are at least that


class Codec:
    """One codec with its options.

    Attributes:
      dtypes: the names of the dtypes that it codes; values of others travel as they are.
      random: whether it draws random numbers, so that `encode` needs a key.
    """

    dtypes: tuple[str, ...] = REAL_FLOATS
    random = False

    def encode(self, x: Array, key: Array | None = None) -> Wire:
        """What travels in place of ``x``, an array of any shape, as one chunk."""
        return self._encode(jnp.ravel(x), key) if x.size else ()

    def decode(self, wire: Wire, shape: Sequence[int], dtype: Any, to: Any = None) -> Array:
        """The values, in the ``shape`` and ``dtype`` that were encoded.

        With ``to=float32``, those of half types come as the floats that they are made of: sums
        round them once only, as the engine does.
        """
        to = jnp.dtype(to or dtype)
        count = math.prod(shape)
        if not count:
            return jnp.zeros(shape, to)
        return self._decode(wire, count, jnp.dtype(dtype)).astype(to).reshape(shape)

    def _encode(self, x: Array, key: Array | None) -> Wire:
        raise NotImplementedError

    def _decode(self, wire: Wire, count: int, dtype: Any) -> Array:
        """``count`` values that were of ``dtype``, in that or as float32."""
        raise NotImplementedError


class FloatCodec(Codec):
    """Codes float32; values of other types are converted first, and those decoded afterwards."""

    def _encode(self, x: Array, key: Array | None) -> Wire:
        return self._encode_floats(x.astype(jnp.float32), key)

    def _decode(self, wire: Wire, count: int, dtype: Any) -> Array:
        narrow = jnp.finfo(jnp.float32 if dtype == jnp.float64 else dtype)
        return self._decode_floats(wire, count, float(narrow.max))

    def _encode_floats(self, x: Array, key: Array | None) -> Wire:
        raise NotImplementedError

    def _decode_floats(self, wire: Wire, count: int, limit: float) -> Array:
        """No finite value may become greater than ``limit``."""
        raise NotImplementedError


def bits_of(x: Array) -> Array:
    """The bits of floats as signed integers, so that magnitudes compare as integers do.

    This neither depends on whether subnormals are flushed nor loses a NaN, which is the greatest.
    """
    return lax.bitcast_convert_type(x, f"int{x.dtype.itemsize * 8}")


def magnitude_of(x: Array) -> Array:
    """`bits_of` without the sign."""
    bits = bits_of(x)
    return bits & jnp.iinfo(bits.dtype).max


def float_of(bits: Array) -> Array:
    """The float32 with these bits."""
    return lax.bitcast_convert_type(bits.astype(jnp.int32), jnp.float32)


def split_blocks(x: Array, length: int) -> Array:
    """Rows of ``length`` consecutive values, the last one filled up with zeros."""
    blocks = -(-x.shape[0] // length)
    return jnp.pad(x, (0, blocks * length - x.shape[0])).reshape(blocks, length)


def join_blocks(rows: Array, count: int) -> Array:
    """The opposite of `split_blocks`."""
    return rows.reshape(-1)[:count]


def pack(codes: Array, bits: int) -> Array:
    """The lowest ``bits`` of each integer, 8 / bits of them to a byte.

    Byte i holds the codes i, i + h, i + 2h, ... of h bytes, the first in the lowest bits, so that
    nothing moves between the lanes of a vector.
    """
    parts = 8 // bits
    codes = (codes & ((1 << bits) - 1)).astype(jnp.uint8)
    length = -(-codes.shape[0] // parts)
    rows = jnp.pad(codes, (0, parts * length - codes.shape[0])).reshape(parts, length)
    packed = rows[0]
    for part in range(1, parts):
        packed = packed | rows[part] << (part * bits)
    return packed


def unpack(packed: Array, bits: int, count: int) -> Array:
    """The codes that `pack` packed, as unsigned int32."""
    wide = packed.astype(jnp.int32)
    shifts = jnp.arange(0, 8, bits, dtype=jnp.int32)[:, None]
    return ((wide >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count]

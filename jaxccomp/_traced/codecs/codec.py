"""What a codec of the traced plane is, and what codecs that code float32 share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
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

    def decode_rows(self, wire: Wire, shape: Sequence[int], dtype: Any, to: Any = None) -> Array:
        """`decode` of each row of what travels, stacked."""
        return jax.vmap(lambda row: self.decode(row, shape, dtype, to))(wire)

    def decode_sum(self, wire: Wire, shape: Sequence[int], dtype: Any, to: Any) -> Array:
        """The sum of `decode_rows`, in the dtype ``to``."""
        return jnp.sum(self.decode_rows(wire, shape, dtype, to), axis=0, dtype=to)

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


def pack(codes: Array, bits: int, block: int) -> Array:
    """The lowest ``bits`` of each integer, 8 / bits of them to a byte, block after block.

    Byte i of a block holds its codes i, i + h, i + 2h, ... of h bytes, the first in the lowest
    bits, so that nothing moves between the lanes of a vector (docs/wire_format_lossy.md).
    """
    codes = (codes & ((1 << bits) - 1)).astype(jnp.uint8)
    whole = codes.shape[0] // block * block
    rest = codes[whole:]
    rest = jnp.pad(rest, (0, -rest.shape[0] % (8 // bits)))
    packed = [_packed(codes[:whole].reshape(-1, block), bits), _packed(rest[None], bits)]
    return jnp.concatenate([each.reshape(-1) for each in packed if each.size])


def _packed(blocks: Array, bits: int) -> Array:
    """Each row packed; its length is a multiple of what a byte holds."""
    rows, length = blocks.shape
    parts = blocks.reshape(rows, 8 // bits, length * bits // 8)
    packed = parts[:, 0]
    for part in range(1, 8 // bits):
        packed = packed | parts[:, part] << (part * bits)
    return packed


def unpack(packed: Array, bits: int, count: int, block: int) -> Array:
    """The codes that `pack` packed, as unsigned int32."""
    whole = count // block * block * bits // 8
    rest = count % block
    blocks = packed[:whole].reshape(-1, block * bits // 8)
    codes = [_unpacked(blocks, bits), _unpacked(packed[None, whole:], bits)[:rest]]
    return jnp.concatenate([each for each in codes if each.size])


def _unpacked(blocks: Array, bits: int) -> Array:
    shifts = jnp.arange(0, 8, bits, dtype=jnp.int32)[:, None]
    return ((blocks.astype(jnp.int32)[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)

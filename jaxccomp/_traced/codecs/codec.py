"""What a codec of the traced plane is, and what codecs that code float32 share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

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
      draws_alike: whether all ranks of a reduction, and the encoding of its result, are to have the
        same key, so that what is kept of their values adds up.
      whole: whether it needs arrays in their shapes, so that they may not be cut into pieces.
    """

    dtypes: tuple[str, ...] = REAL_FLOATS
    random = False
    draws_alike = False
    whole = False

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

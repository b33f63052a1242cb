"""The base classes of codecs in JAX: `Codec`, and `FloatCodec` for codecs of float32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Array = Any
# Encoded values: arrays whose shapes and dtypes depend only on the values' shape and dtype.
Wire = tuple[Array, ...]
Options = Mapping[str, str]

REAL_FLOATS = ("float16", "bfloat16", "float32", "float64")
NAN = jnp.nan
INFINITY = 0x7F800000
MIN_EXPONENT = 27  # of the minimum scale, 2^-100


class Codec:
    """A codec with its options.

    Attributes:
      dtypes: names of the dtypes that it encodes; values of other dtypes are sent as they are.
      random: whether `encode` draws random numbers and needs a key.
      draws_alike: whether all ranks of a reduction, and the encoding of its result, need the same
        key, so that all of them send the same positions.
      whole: whether arrays must not be cut into pieces.
    """

    dtypes: tuple[str, ...] = REAL_FLOATS
    random = False
    draws_alike = False
    whole = False

    def encode(self, x: Array, key: Array | None = None) -> Wire:
        """Encode ``x``, an array of any shape, as one chunk."""
        return self._encode(jnp.ravel(x), key) if x.size else ()

    def decode(self, wire: Wire, shape: Sequence[int], dtype: Any, to: Any = None) -> Array:
        """Decode values of ``shape`` and ``dtype``.

        With ``to=float32``, values of half types are not rounded after decoding: a sum rounds only
        once, as in the engine.
        """
        to = jnp.dtype(to or dtype)
        count = math.prod(shape)
        if not count:
            return jnp.zeros(shape, to)
        return self._decode(wire, count, jnp.dtype(dtype)).astype(to).reshape(shape)

    def decode_rows(self, wire: Wire, shape: Sequence[int], dtype: Any, to: Any = None) -> Array:
        """Return `decode` of each encoded row, stacked."""
        return jax.vmap(lambda row: self.decode(row, shape, dtype, to))(wire)

    def decode_sum(self, wire: Wire, shape: Sequence[int], dtype: Any, to: Any) -> Array:
        """Return the sum of `decode_rows`, in the dtype ``to``."""
        return jnp.sum(self.decode_rows(wire, shape, dtype, to), axis=0, dtype=to)

    def _encode(self, x: Array, key: Array | None) -> Wire:
        raise NotImplementedError

    def _decode(self, wire: Wire, count: int, dtype: Any) -> Array:
        """Decode ``count`` values of ``dtype``, as this dtype or as float32."""
        raise NotImplementedError


class FloatCodec(Codec):
    """Encodes float32. Other dtypes are converted before encoding and after decoding."""

    def _encode(self, x: Array, key: Array | None) -> Wire:
        return self._encode_floats(x.astype(jnp.float32), key)

    def _decode(self, wire: Wire, count: int, dtype: Any) -> Array:
        narrow = jnp.finfo(jnp.float32 if dtype == jnp.float64 else dtype)
        return self._decode_floats(wire, count, float(narrow.max))

    def _encode_floats(self, x: Array, key: Array | None) -> Wire:
        raise NotImplementedError

    def _decode_floats(self, wire: Wire, count: int, limit: float) -> Array:
        """Decode, with finite values clipped to +-``limit``."""
        raise NotImplementedError

"""topk, randomk: send a few of the values unrounded; the others become 0."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxccomp import errors
from jaxccomp._traced.codecs.codec import NAN, Array, Codec, Options, Wire
from jaxccomp._traced.codecs.operators import KIND, high_product, magnitude_of

_MAX_COUNT = 2**31 - 1  # positions are int32


class Sparse(Codec):
    """The base class: the number of values to send. All become NaN if a value is not finite."""

    def __init__(self, options: Options):
        self.density = float(options["density"])

    def kept(self, count: int) -> int:
        if count > _MAX_COUNT:
            raise errors.InvalidArgumentError(
                f"sparse codecs of the traced plane take arrays of up to {_MAX_COUNT} values, not "
                f"{count}; split the array."
            )
        return min(count, max(1, math.ceil(self.density * count)))


class TopK(Sparse):
    """Sends the values that are largest by magnitude, with their positions; of ties the first."""

    def _encode(self, x: Array, key: Array | None) -> Wire:
        places = lax.top_k(magnitude_of(x), self.kept(x.shape[0]))[1]
        narrowest = jnp.uint16 if x.shape[0] <= 2**16 else jnp.int32
        return _poisoned(x[places], x), places.astype(narrowest)

    def _decode(self, wire: Wire, count: int, dtype: Any) -> Array:
        return _scattered(wire[0], wire[1], count)


class RandomK(Sparse):
    """Sends one value of each of equal parts, at a random position, and the key."""

    random = True

    def __init__(self, options: Options):
        super().__init__(options)
        self.unbiased = options["unbiased"] == "true"
        # Unbiased values are multiplied at each encoding. With the same positions, the second
        # encoding would multiply the same values again, and the result would be biased.
        self.draws_alike = not self.unbiased

    def _encode(self, x: Array, key: Array | None) -> Wire:
        assert key is not None  # because `random` is true
        places, lengths = self._drawn(key, x.shape[0])
        values = x[places]
        if self.unbiased:
            wide = jnp.promote_types(x.dtype, jnp.float32)
            limit = float(jnp.finfo(x.dtype).max)
            scaled = values.astype(wide) * lengths.astype(wide)
            values = jnp.clip(scaled, -limit, limit).astype(x.dtype)
        return _poisoned(values, x), jax.random.key_data(key)

    def _decode(self, wire: Wire, count: int, dtype: Any) -> Array:
        values, key = wire
        places, _ = self._drawn(jax.random.wrap_key_data(key, impl=KIND), count)
        return _scattered(values, places, count)

    def _drawn(self, key: Array, count: int) -> tuple[Array, Array]:
        """Return a random place in each part, and the parts' lengths."""
        kept = self.kept(count)
        length, rest = divmod(count, kept)  # the first `rest` parts are one longer
        part = jnp.arange(kept, dtype=jnp.int32)
        lengths = length + (part < rest)
        begins = part * length + jnp.minimum(part, rest)
        drawn = high_product(jax.random.bits(key, (kept,), jnp.uint32), lengths)
        return begins + drawn.astype(jnp.int32), lengths


def _poisoned(values: Array, x: Array) -> Array:
    return jnp.where(jnp.isfinite(x).all(), values, NAN)


def _scattered(values: Array, places: Array, count: int) -> Array:
    result = jnp.zeros(count, values.dtype).at[places].set(values, unique_indices=True)
    return jnp.where(jnp.isnan(values[0]), NAN, result)

"""onebit, ternary, tbq: one or two bits per value."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxccomp._traced.codecs.codec import (
    INFINITY,
    MIN_EXPONENT,
    NAN,
    Array,
    FloatCodec,
    Options,
    Wire,
)
from jaxccomp._traced.codecs.operators import (
    bits_of,
    draw,
    float_of,
    join_blocks,
    magnitude_of,
    pack,
    split_blocks,
    unpack,
)

_MIN_SCALE = MIN_EXPONENT << 23  # as bits
_TBQ_BLOCK = 1024


class OneBit(FloatCodec):
    """Sign bits, and a block's means of the values with and without the sign bit.

    Sums are float32, because not every JAX platform has float64. The engine sums in float64, so
    means may differ in their last digits.
    """

    def __init__(self, options: Options):
        self.block = int(options["block"])

    def _encode_floats(self, x: Array, key: Array | None) -> Wire:
        blocks = split_blocks(x, self.block)
        real = split_blocks(jnp.ones(x.shape, bool), self.block)
        negative = bits_of(blocks) < 0
        greatest = magnitude_of(blocks).max(axis=1)
        means = [_mean(blocks, real & chosen, greatest) for chosen in (~negative, negative)]
        signs = join_blocks(negative.astype(jnp.int32), x.shape[0])
        return jnp.stack(means, axis=1), _pack_signs(signs)

    def _decode_floats(self, wire: Wire, count: int, limit: float) -> Array:
        means, packed = wire
        plain, negative = means[:, 0], means[:, 1]
        signs = split_blocks(_unpack_signs(packed, count), self.block)
        return join_blocks(jnp.where(signs, negative[:, None], plain[:, None]), count)


def _pack_signs(signs: Array) -> Array:
    """Pack signs: value i has bit i mod 8 of byte i / 8."""
    rows = split_blocks(signs, 8) << jnp.arange(8, dtype=jnp.int32)
    return rows.sum(axis=1).astype(jnp.uint8)


def _unpack_signs(packed: Array, count: int) -> Array:
    return join_blocks(packed.astype(jnp.int32)[:, None] >> jnp.arange(8) & 1, count)


def _mean(blocks: Array, chosen: Array, greatest: Array) -> Array:
    """Return the mean of each block's chosen values; NaN if the block is not finite."""
    # Divide the values by the block's length first, so that their sum cannot overflow.
    length = blocks.shape[1]
    total = jnp.where(chosen, blocks * (1 / length), 0).sum(axis=1)
    counts = jnp.maximum(chosen.sum(axis=1), 1).astype(jnp.float32)
    mean = total * (length / counts)
    finite = greatest < INFINITY
    limit = float_of(jnp.where(finite, greatest, 0))
    mean = jnp.where(magnitude_of(mean) < _MIN_SCALE, 0, jnp.clip(mean, -limit, limit))
    return jnp.where(finite, mean, NAN)


class Ternary(FloatCodec):
    """-1, 0 and 1 times the block's greatest value."""

    def __init__(self, options: Options):
        self.block = int(options["block"])
        self.random = options["rounding"] == "stochastic"

    def _encode_floats(self, x: Array, key: Array | None) -> Wire:
        blocks = split_blocks(x, self.block)
        magnitude = magnitude_of(blocks)
        greatest = magnitude.max(axis=1)
        coded = (greatest >= _MIN_SCALE) & (greatest < INFINITY)
        scales = jnp.where(coded, float_of(greatest), jnp.where(greatest < _MIN_SCALE, 0, NAN))
        step = jnp.where(coded, scales, 0)[:, None]
        if self.random:
            # For a uniform u, the probability of |x| >= (1 - u) * step is |x| / step.
            left = 65535 - draw(key, blocks.shape)
            reached = magnitude >= bits_of((left + 0.5) * 2.0**-16 * step)
        else:
            reached = magnitude > bits_of(0.5 * step)
        codes = _signed(blocks, reached & coded[:, None])
        return scales, pack(join_blocks(codes, x.shape[0]), 2, self.block)

    def _decode_floats(self, wire: Wire, count: int, limit: float) -> Array:
        scales, packed = wire
        codes = split_blocks(unpack(packed, 2, count, self.block) << 30 >> 30, self.block)
        return join_blocks(codes.astype(jnp.float32) * scales[:, None], count)


class Threshold(FloatCodec):
    """tbq: values with at least the threshold's magnitude become +-threshold, others 0."""

    def __init__(self, options: Options):
        self.threshold = np.float32(options["threshold"])

    def _encode_floats(self, x: Array, key: Array | None) -> Wire:
        magnitude = magnitude_of(x)
        codes = _signed(x, magnitude >= bits_of(jnp.asarray(self.threshold)))
        return (pack(jnp.where(magnitude < INFINITY, codes, 2), 2, _TBQ_BLOCK),)

    def _decode_floats(self, wire: Wire, count: int, limit: float) -> Array:
        codes = unpack(wire[0], 2, count, _TBQ_BLOCK)
        values = (codes << 30 >> 30).astype(jnp.float32) * self.threshold
        return jnp.where(codes == 2, NAN, values)


def _signed(x: Array, reached: Array) -> Array:
    """Return 0 where ``reached`` is false, else 1 for positive and -1 for negative values."""
    return jnp.where(reached, jnp.where(bits_of(x) < 0, -1, 1), 0)

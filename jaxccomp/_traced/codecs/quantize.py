"""int8, int4, int2, fp8_e4m3, fp8_e5m2: blocks of small integers or floats times a scale.

The arithmetic follows docs/wire_format_lossy.md: when rounding to nearest, decoded values equal the
engine's bit for bit.
"""

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


class Integers(FloatCodec):
    """Integers of ``bits`` bits; the scale is a bfloat16, encoded as its bits."""

    def __init__(self, bits: int, options: Options):
        self.bits = bits
        self.max_code = 2 ** (bits - 1) - 1
        self.block = int(options["block"])
        self.random = options["rounding"] == "stochastic"

    def _encode_floats(self, x: Array, key: Array | None) -> Wire:
        blocks = split_blocks(x, self.block)
        greatest = magnitude_of(blocks).max(axis=1)
        finite = greatest < INFINITY
        up = _divided_upwards(float_of(jnp.where(finite, greatest, 0)), self.max_code)
        up = jnp.clip(up, MIN_EXPONENT << 23, 0x7F7F0000)
        scales = jnp.where(finite, up >> 16, 0x7FC0).astype(jnp.uint16)
        # The inverse of a scale near the greatest float would be subnormal. For int2, multiply the
        # inverse by four and the values by a quarter. The quarter is no constant, because XLA would
        # cancel constant factors.
        factor = 4.0 if self.bits == 2 else 1.0
        quarter = jnp.where(finite, 1 / factor, 0)[:, None]
        steps = jnp.where(finite[:, None], blocks, 0) * quarter * (factor / float_of(up))[:, None]
        if self.random:
            # The clip changes no code, but prevents XLA from fusing product and sum.
            steps = jnp.clip(steps, -2 * self.max_code, 2 * self.max_code)
            steps = jnp.floor(steps + (draw(key, blocks.shape) + 0.5) * 2.0**-16)
        else:
            steps = jnp.round(steps)
        # Rounding of the product and the sum may exceed the greatest code by one.
        codes = jnp.clip(steps, -self.max_code, self.max_code).astype(jnp.int32)
        return scales, pack(join_blocks(codes, x.shape[0]), self.bits, self.block)

    def _decode_floats(self, wire: Wire, count: int, limit: float) -> Array:
        scales, packed = wire
        unused = 32 - self.bits  # shifting left and right extends the sign
        codes = unpack(packed, self.bits, count, self.block) << unused >> unused
        blocks = split_blocks(codes, self.block).astype(jnp.float32)
        values = blocks * float_of(scales.astype(jnp.int32) << 16)[:, None]
        return jnp.clip(join_blocks(values, count), -limit, limit)


def _divided_upwards(x: Array, max_code: int) -> Array:
    """Return the bits of x / max_code, rounded to float32 and then up to bfloat16.

    XLA replaces a division by a constant by a multiplication, which rounds differently. So the
    remainder ``x - near * max_code`` decides; it is exact if ``near`` is close to the quotient.
    """
    near = (bits_of(x * np.float32(1 / max_code)) + 0x8000) & -0x10000
    half_unit = float_of(near & INFINITY) * 2.0**-24
    above = x - float_of(near) * max_code > half_unit * max_code
    return near + (above.astype(jnp.int32) << 16)


class SmallFloats(FloatCodec):
    """Floats of 8 bits; the scale is a power of two, encoded as its exponent."""

    def __init__(self, mantissa: int, bias: int, max_exponent: int, options: Options):
        self.mantissa = mantissa
        self.shift = 23 - mantissa
        self.min_normal = (128 - bias) << 23
        self.max_exponent = max_exponent
        self.block = int(options["block"])

    def _encode_floats(self, x: Array, key: Array | None) -> Wire:
        blocks = split_blocks(x, self.block)
        greatest = magnitude_of(blocks).max(axis=1)
        finite = greatest < INFINITY
        # A mantissa above 1.75 carries into the exponent.
        exponent = (jnp.where(finite, greatest, 0) + 0x1FFFFF) >> 23
        scale = jnp.maximum(exponent - self.max_exponent, MIN_EXPONENT)
        scales = jnp.where(finite, scale, 255).astype(jnp.uint8)
        inverse = float_of((254 - scale) << 23)
        scaled = jnp.where(finite[:, None], blocks, 0) * inverse[:, None]
        codes = join_blocks(self._codes(scaled), x.shape[0])
        return scales, codes.astype(jnp.uint8)

    def _codes(self, x: Array) -> Array:
        """Round by adding the power of two whose unit in the last place equals the code's.

        The sum minus that power is the code's mantissa; the power gives its exponent.
        """
        magnitude = magnitude_of(x)
        exponent = jnp.maximum(magnitude & INFINITY, self.min_normal)
        power = exponent + (self.shift << 23)
        rounded = bits_of(float_of(magnitude) + float_of(power))
        codes = rounded - power + ((exponent - self.min_normal) >> self.shift)
        return codes | ((bits_of(x) >> 24) & 0x80)

    def _decode_floats(self, wire: Wire, count: int, limit: float) -> Array:
        scales, packed = wire
        codes = packed.astype(jnp.int32)
        digits = codes & 0x7F
        raised = (digits << self.shift) + self.min_normal
        normal = float_of(raised - (1 << 23))
        subnormal = float_of(raised) - float_of(jnp.asarray(self.min_normal))
        value = jnp.where(digits >> self.mantissa, normal, subnormal)
        value = float_of(bits_of(value) | (codes & 0x80) << 24)
        exponents = scales.astype(jnp.int32)
        factor = jnp.where(exponents == 255, NAN, float_of(exponents << 23))
        values = split_blocks(value, self.block) * factor[:, None]
        return jnp.clip(join_blocks(values, count), -limit, limit)

"""A codec like a user's, for tests on all planes."""

import jax.numpy as jnp

import jaxccomp
from jaxccomp import toolkit


class Scaled:
    """Blocks of 4-bit integers times the largest value, rounded stochastically."""

    random = True
    error = "1/7 of the block's greatest value"

    def encode(x, options, key):
        blocks = toolkit.split_blocks(jnp.ravel(x).astype("float32"), options.block)
        scale = toolkit.greatest(blocks, axis=1)[:, None]
        steps = blocks / jnp.where(scale == 0, 1, scale) * options.levels
        codes = toolkit.round_randomly(steps, key).ravel().astype(jnp.int32)
        return toolkit.pack(codes, 4), scale

    def decode(payload, shape, dtype, options):
        packed, scale = payload
        codes = toolkit.unpack(packed, 4, scale.size * options.block) << 28 >> 28
        blocks = toolkit.split_blocks(codes, options.block) * (scale / options.levels)
        return toolkit.join_blocks(blocks, jnp.zeros(shape).size).reshape(shape).astype(dtype)


def register() -> str:
    """Registers the codec, and returns its name."""
    jaxccomp.register_codec("test_scaled", block=64, levels=7)(Scaled)
    return "test_scaled"

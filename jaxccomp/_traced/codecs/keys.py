"""Random keys and numbers for codecs in traced programs, which have no step counter.

The engine's seed includes the number of the step. A traced program depends only on its inputs, so a
key consists of a constant of the operation and operand, the rank, and a hash of the values, which
differ from step to step. Equal values in the same place draw the same numbers. The generator is the
engine's (docs/wire_format_lossy.md).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxccomp._traced.codecs.codec import Array

KIND = "threefry2x32"


def key_for(x: Array, constant: str, rank: Array) -> Array:
    """Return the key to encode ``x`` on a rank; ``constant`` identifies the operation."""
    return jax.random.fold_in(jax.random.fold_in(_constant_key(constant), rank), hash_of(x))


def shared_key(hashes: Array, constant: str) -> Array:
    """Return the common key of all ranks, from the sum of their `hash_of`."""
    return jax.random.fold_in(_constant_key(constant), hashes)


def _constant_key(constant: str) -> Array:
    return jax.random.key(zlib.crc32(constant.encode()), impl=KIND)


def words_of(key: Array) -> Array:
    """Return the two words of a key; they take the place of the step in the engine's seed."""
    return jax.random.key_data(key)


def draw(key: Array, shape: Sequence[int]) -> Array:
    """Return integers below 2^16, as float32: the engine's numbers of the positions 0, 1, 2, ...

    Position p has the (p mod 8)-th 16-bit piece of Philox4x32-10 of p / 8; Philox's key are the
    words of ``key``, which depend on tensor and rank.
    """
    count = math.prod(shape)
    words = jnp.stack(_philox(words_of(key), -(-count // 8)), axis=1)
    pieces = words[:, :, None] >> jnp.array([0, 16], jnp.uint32) & 0xFFFF
    return pieces.reshape(-1)[:count].astype(jnp.float32).reshape(shape)


def _philox(key: Array, count: int) -> Sequence[Array]:
    """Return the four words of each of the counters 0 to ``count`` - 1.

    In a loop, so that they are computed once: XLA would fuse the rounds with each use of a word.
    """
    zeros = jnp.zeros(count, jnp.uint32)
    counters = (jnp.arange(count, dtype=jnp.uint32), zeros, zeros, zeros)

    def five_rounds(_: int, state: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        c, key0, key1 = state
        for _ in range(5):
            a, b = jnp.uint32(0xD2511F53), jnp.uint32(0xCD9E8D57)
            a_high, b_high = high_product(c[0], a), high_product(c[2], b)
            c = (b_high ^ c[1] ^ key0, c[2] * b, a_high ^ c[3] ^ key1, c[0] * a)
            key0, key1 = key0 + jnp.uint32(0x9E3779B9), key1 + jnp.uint32(0xBB67AE85)
        return c, key0, key1

    return lax.fori_loop(0, 2, five_rounds, (counters, key[0], key[1]))[0]


def high_product(a: Array, b: Array) -> Array:
    """Return the upper 32 bits of products of unsigned 32-bit integers."""
    a, b = a.astype(jnp.uint32), b.astype(jnp.uint32)
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    one, two = a_high * b_low, a_low * b_high
    middle = (a_low * b_low >> 16) + (one & 0xFFFF) + (two & 0xFFFF)
    return a_high * b_high + (one >> 16) + (two >> 16) + (middle >> 16)


def hash_of(x: Array) -> Array:
    """Return a hash: the sum of the values' bits, each times a different odd number."""
    words = lax.bitcast_convert_type(x, jnp.uint32 if x.dtype.itemsize >= 4 else jnp.uint16)
    words = words.reshape(-1).astype(jnp.uint32)
    return jnp.sum(words * (2 * jnp.arange(words.shape[0], dtype=jnp.uint32) + 1), dtype=jnp.uint32)

"""Random keys for codecs, where nothing counts steps, and what is drawn with them.

The engine draws from the number of the step. A traced program is a function of its inputs alone,
so a key is made of what there is: which operation of which values it is (a constant of the
program), the rank, and a hash of the values, which differ from step to step. The same values in the
same place draw the same numbers again, by the engine's generator (docs/wire_format_lossy.md).
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
    """The key to encode ``x`` with on a rank; ``constant`` says where in the program that is."""
    return jax.random.fold_in(jax.random.fold_in(_constant_key(constant), rank), hash_of(x))


def shared_key(hashes: Array, constant: str) -> Array:
    """A key that all ranks of an operation have, of the sum of what `hash_of` gives on each."""
    return jax.random.fold_in(_constant_key(constant), hashes)


def _constant_key(constant: str) -> Array:
    return jax.random.key(zlib.crc32(constant.encode()), impl=KIND)


def words_of(key: Array) -> Array:
    """The two words that a key is: those of the step, as the engine's random numbers have it."""
    return jax.random.key_data(key)


def draw(key: Array, shape: Sequence[int]) -> Array:
    """Integers below 2^16, as float32: the engine's of the positions 0, 1, 2, ...

    That of position p is the (p mod 8)-th 16-bit piece of Philox4x32-10 of p / 8, whose key are the
    words of ``key``; tensor and rank are in those.
    """
    count = math.prod(shape)
    words = jnp.stack(_philox(words_of(key), -(-count // 8)), axis=1)
    pieces = words[:, :, None] >> jnp.array([0, 16], jnp.uint32) & 0xFFFF
    return pieces.reshape(-1)[:count].astype(jnp.float32).reshape(shape)


def _philox(key: Array, count: int) -> Sequence[Array]:
    """The four words of each of the counters from 0 on.

    In a loop, so that they are made once: XLA would fuse the rounds with each use of a word.
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
    """The upper 32 bits of the products of unsigned integers of 32 bits."""
    a, b = a.astype(jnp.uint32), b.astype(jnp.uint32)
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    one, two = a_high * b_low, a_low * b_high
    middle = (a_low * b_low >> 16) + (one & 0xFFFF) + (two & 0xFFFF)
    return a_high * b_high + (one >> 16) + (two >> 16) + (middle >> 16)


def hash_of(x: Array) -> Array:
    """A sum of the values' bits, each times another odd number."""
    words = lax.bitcast_convert_type(x, jnp.uint32 if x.dtype.itemsize >= 4 else jnp.uint16)
    words = words.reshape(-1).astype(jnp.uint32)
    return jnp.sum(words * (2 * jnp.arange(words.shape[0], dtype=jnp.uint32) + 1), dtype=jnp.uint32)

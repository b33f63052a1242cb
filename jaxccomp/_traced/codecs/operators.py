"""Building blocks of codecs: random numbers, blocks, narrow codes, selection, random rounding."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxccomp import errors
from jaxccomp._traced.codecs.codec import Array

# --- Random keys and numbers, for traced programs, which have no step counter ---------------------
# The engine's seed includes the number of the step. A traced program depends only on its inputs, so
# a key is made from a constant of the operation and operand, the rank, and a hash of the values,
# which differ from step to step. If the values are equal, so are the random numbers. The generator
# is the engine's (docs/wire_format_lossy.md).

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
    """Return the two words of a key; they replace the step number in the engine's seed."""
    return jax.random.key_data(key)


def draw(key: Array, shape: Sequence[int]) -> Array:
    """Return integers below 2^16, as float32: the engine's numbers of the positions 0, 1, 2, ...

    Position p has the (p mod 8)-th 16-bit piece of Philox4x32-10 of p / 8. Philox's key is the two
    words of ``key``.
    """
    count = math.prod(shape)
    words = jnp.stack(_philox(words_of(key), -(-count // 8)), axis=1)
    pieces = words[:, :, None] >> jnp.array([0, 16], jnp.uint32) & 0xFFFF
    return pieces.reshape(-1)[:count].astype(jnp.float32).reshape(shape)


def _philox(key: Array, count: int) -> Sequence[Array]:
    """Return the four words of each of the counters 0 to ``count`` - 1.

    The rounds run in a loop, because XLA would fuse unrolled rounds with each use of a word, and
    compute them several times.
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


# --- Operators ------------------------------------------------------------------------------------
# The operators of CompLL (HiPress, SOSP 2021, section 5) in JAX. CompLL's ``map`` is jax.numpy
# itself; payloads are typed, because they are pytrees of arrays. Shapes of results depend only on
# shapes, as XLA requires.


def bits_of(x: Array) -> Array:
    """Return the bits of floats as signed integers.

    Without the sign bit, they are ordered like the magnitudes, and NaN is the greatest. Subnormals
    are not flushed to zero, as they would be in comparisons of floats.
    """
    return lax.bitcast_convert_type(x, f"int{x.dtype.itemsize * 8}")


def magnitude_of(x: Array) -> Array:
    """Return `bits_of` without the sign bit."""
    bits = bits_of(x)
    return bits & jnp.iinfo(bits.dtype).max


def float_of(bits: Array) -> Array:
    """Return the float32 with these bits."""
    return lax.bitcast_convert_type(bits.astype(jnp.int32), jnp.float32)


def split_blocks(x: Array, length: int) -> Array:
    """Return rows of ``length`` consecutive values, the last row padded with zeros."""
    blocks = -(-x.shape[0] // length)
    return jnp.pad(x, (0, blocks * length - x.shape[0])).reshape(blocks, length)


def join_blocks(rows: Array, count: int) -> Array:
    """Return the first ``count`` values of ``rows``: the inverse of `split_blocks`."""
    return rows.reshape(-1)[:count]


def greatest(x: Array, axis: int | None = None) -> Array:
    """Return the greatest magnitude of floats; NaN if one of them is NaN.

    ``jnp.max(jnp.abs(x))`` may lose a NaN, because XLA's maximum on CPUs is optimised for speed. A
    codec that scales by such a maximum would hide non-finite values.

    Args:
      x: array of real floats of any shape.
      axis: the axis to reduce; by default all.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxccomp import toolkit
      >>> float(toolkit.greatest(jnp.array([1.0, -3.0])))
      3.0
    """
    return lax.bitcast_convert_type(magnitude_of(x).max(axis=axis), x.dtype)


def reduce_blocks(function: Callable[..., Array], x: Array, length: int) -> Array:
    """Reduce each block of consecutive values to one.

    Args:
      function: such as ``jnp.max``; it is called with ``axis=1``.
      x: array of any shape; the last block is padded with zeros.
      length: values in a block.

    Returns:
      One value per block.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxccomp import toolkit
      >>> toolkit.reduce_blocks(jnp.max, jnp.arange(6), 4).tolist()
      [3, 5]
    """
    return function(split_blocks(jnp.ravel(x), length), axis=1)


def pack(codes: Array, bits: int, block: int = 1024) -> Array:
    """Pack the lowest ``bits`` of each integer, 8 / bits integers to a byte, block by block.

    Byte i of a block of h bytes holds the block's codes i, i + h, i + 2h, ..., the first in the
    lowest bits. So no code moves between vector lanes (docs/wire_format_lossy.md).

    Args:
      codes: 1-D array of integers.
      bits: 1, 2, 4 or 8.
      block: codes that are packed together, a multiple of 8 / bits.

    Returns:
      uint8, one byte for 8 / bits codes, the last one padded with zeros.

    Raises:
      InvalidArgumentError: for other ``bits``, or a block that is no multiple of 8 / bits.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxccomp import toolkit
      >>> packed = toolkit.pack(jnp.array([1, 2, 3, 0, 1]), 2)
      >>> packed.shape, toolkit.unpack(packed, 2, 5).tolist()
      ((2,), [1, 2, 3, 0, 1])
    """
    _check_packing(bits, block)
    codes = (codes & ((1 << bits) - 1)).astype(jnp.uint8)
    whole = codes.shape[0] // block * block
    rest = codes[whole:]
    rest = jnp.pad(rest, (0, -rest.shape[0] % (8 // bits)))
    packed = [_packed(codes[:whole].reshape(-1, block), bits), _packed(rest[None], bits)]
    return jnp.concatenate([each.reshape(-1) for each in packed if each.size])


def _packed(blocks: Array, bits: int) -> Array:
    """Pack each row; the rows' length is a multiple of 8 / bits."""
    rows, length = blocks.shape
    parts = blocks.reshape(rows, 8 // bits, length * bits // 8)
    packed = parts[:, 0]
    for part in range(1, 8 // bits):
        packed = packed | parts[:, part] << (part * bits)
    return packed


def unpack(packed: Array, bits: int, count: int, block: int = 1024) -> Array:
    """Return the ``count`` codes that `pack` packed, as unsigned numbers in int32.

    Args:
      packed: the result of `pack`.
      bits: as in `pack`.
      count: the number of codes.
      block: as in `pack`.

    Raises:
      InvalidArgumentError: as `pack`.
    """
    _check_packing(bits, block)
    whole = count // block * block * bits // 8
    rest = count % block
    blocks = packed[:whole].reshape(-1, block * bits // 8)
    codes = [_unpacked(blocks, bits), _unpacked(packed[None, whole:], bits)[:rest]]
    return jnp.concatenate([each for each in codes if each.size])


def _unpacked(blocks: Array, bits: int) -> Array:
    shifts = jnp.arange(0, 8, bits, dtype=jnp.int32)[:, None]
    return ((blocks.astype(jnp.int32)[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)


def _check_packing(bits: int, block: int) -> None:
    if bits not in (1, 2, 4, 8) or block % (8 // bits):
        raise errors.InvalidArgumentError(
            f"codes of bits={bits} in blocks of {block}: bits must be 1, 2, 4 or 8, and the block "
            "length a multiple of 8 / bits."
        )


# --- Selection of a static number of values -------------------------------------------------------


def filter_top(x: Array, count: int) -> tuple[Array, Array]:
    """Return the values that are largest by magnitude, and their places.

    Args:
      x: array of any shape, of real floats.
      count: the number of values, at most ``x.size``.

    Returns:
      ``(values, places)`` of shape (count,): places are int32 indices into ``x.ravel()``. Of values
      of equal magnitude, the first ones are returned. NaN is the largest.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxccomp import toolkit
      >>> values, places = toolkit.filter_top(jnp.array([1.0, -3.0, 2.0]), 2)
      >>> values.tolist(), places.tolist()
      ([-3.0, 2.0], [1, 2])
    """
    flat = jnp.ravel(x)
    places = lax.top_k(magnitude_of(flat), count)[1].astype(jnp.int32)
    return flat[places], places


def filter_where(mask: Array, x: Array, count: int) -> tuple[Array, Array]:
    """Return the first ``count`` values where ``mask`` is true, and their places.

    Args:
      mask: bools, of the shape of ``x``.
      x: array of any shape.
      count: the number of results, for any mask. Further true entries of the mask are ignored.

    Returns:
      ``(values, places)`` of shape (count,). If the mask has fewer true entries, the other values
      are 0, with the place ``x.size``, which `scatter` ignores.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxccomp import toolkit
      >>> x = jnp.array([5.0, 0.5, 7.0])
      >>> values, places = toolkit.filter_where(x > 1, x, 3)
      >>> values.tolist(), places.tolist()
      ([5.0, 7.0, 0.0], [0, 2, 3])
    """
    flat = jnp.ravel(x)
    places = jnp.nonzero(jnp.ravel(mask), size=count, fill_value=flat.size)[0].astype(jnp.int32)
    return flat.at[places].get(mode="fill", fill_value=0), places


def scatter(values: Array, places: Array, shape: Sequence[int]) -> Array:
    """Return zeros of ``shape`` with ``values`` at ``places``: the inverse of the filters.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxccomp import toolkit
      >>> toolkit.scatter(jnp.array([5.0, 7.0]), jnp.array([0, 3]), (2, 2)).tolist()
      [[5.0, 0.0], [0.0, 7.0]]
    """
    zeros = jnp.zeros(math.prod(shape), values.dtype)
    return zeros.at[places].set(values, mode="drop").reshape(tuple(shape))


def sampled_quantile(x: Array, q: float, samples: int, key: Array) -> Array:
    """Return a quantile of the values, estimated from a sample.

    Sorting a sample costs far less than sorting all (Lin et al. 2018, Deep Gradient Compression).

    Args:
      x: array of any shape.
      q: from 0 to 1.
      samples: the number of values drawn, with repetition. If it is at least ``x.size``, nothing is
        drawn and the quantile is exact.
      key: a typed key of `jax.random`; a codec with ``random = True`` gets one.

    Returns:
      A scalar like the values.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxccomp import toolkit
      >>> float(toolkit.sampled_quantile(jnp.arange(101.0), 0.5, 200, jax.random.key(0)))
      50.0
    """
    flat = jnp.ravel(x)
    if samples < flat.size:
        flat = flat[jax.random.randint(key, (samples,), 0, flat.size)]
    return jnp.quantile(flat, q).astype(x.dtype)


# --- Random numbers -----------------------------------------------------------------------------


def uniform(key: Array, shape: Sequence[int]) -> Array:
    """Return uniform random numbers in [0, 1), as float32.

    A number has 16 bits, and depends only on the key and its place (Philox4x32-10, Salmon et al.
    2011). The engine's stochastic codecs draw the same numbers.

    Example:
      >>> import jax
      >>> from jaxccomp import toolkit
      >>> drawn = toolkit.uniform(jax.random.key(0), (1000,))
      >>> bool(((drawn >= 0) & (drawn < 1)).all())
      True
    """
    return draw(key, shape) * 2.0**-16


def round_randomly(x: Array, key: Array) -> Array:
    """Round up or down to an integer at random, such that the expected result is the value.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxccomp import toolkit
      >>> rounded = toolkit.round_randomly(jnp.full(10000, 0.25), jax.random.key(0))
      >>> sorted(set(rounded.tolist())), 0.23 < float(rounded.mean()) < 0.27
      ([0.0, 1.0], True)
    """
    return jnp.floor(x + (draw(key, x.shape) + 0.5) * 2.0**-16)

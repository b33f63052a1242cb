"""Random keys for codecs, where nothing counts steps.

The engine draws from the number of the step. A traced program is a function of its inputs alone,
so a key is made of what there is: which operation of which values it is (a constant of the
program), the rank, and a hash of the values, which differ from step to step. The same values in the
same place draw the same numbers again.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax

from jaxccomp._traced_codecs.codec import Array

KIND = "threefry2x32"


def key_for(x: Array, constant: str, axes: tuple[Hashable, ...]) -> Array:
    """The key to encode ``x`` with; ``constant`` says where in the program that is."""
    key = jax.random.key(zlib.crc32(constant.encode()), impl=KIND)
    return jax.random.fold_in(jax.random.fold_in(key, lax.axis_index(axes)), _hash(x))


def _hash(x: Array) -> Array:
    """A sum of the values' bits, each times another odd number."""
    words = lax.bitcast_convert_type(x, jnp.uint32 if x.dtype.itemsize >= 4 else jnp.uint16)
    words = words.reshape(-1).astype(jnp.uint32)
    return jnp.sum(words * (2 * jnp.arange(words.shape[0], dtype=jnp.uint32) + 1), dtype=jnp.uint32)

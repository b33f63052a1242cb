"""Registered codecs (jaxccomp.toolkit) in the form of the package's JAX codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxccomp import _jax, errors
from jaxccomp._codecs.custom import CustomCodec
from jaxccomp._traced.codecs.codec import Array, Codec, Wire

# Types that XLA packs several to a byte.
_NO_BYTES = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")


class Custom(Codec):
    """Calls the codec's functions, and checks their results."""

    def __init__(self, codec: CustomCodec, given: Mapping[str, str]):
        self.codec = codec
        self.name = codec.info.name
        self.options = codec.options(given)
        self.dtypes = codec.info.dtypes
        self.random = codec.random
        self.whole = codec.whole

    def encode(self, x: Array, key: Array | None = None) -> Wire:
        if not x.size:
            return ()
        try:
            payload = self.codec.encode(x, self.options, key)
        except (IndexError, TypeError) as error:
            if not _jax.depends_on_values(error):
                raise
            raise errors.CodecError(
                f"codec {self.name!r}: the shape of what encode gives must follow from the shape "
                "and dtype of its values alone, but it depends on the values themselves. Keep a "
                "number of them that is known when tracing (toolkit.filter_top, "
                f"jnp.nonzero(..., size=)). JAX says: {str(error).splitlines()[0]}"
            ) from error
        for leaf in jax.tree.leaves(payload):
            if not isinstance(leaf, jax.Array):
                raise errors.CodecError(
                    f"codec {self.name!r}: encode must give a pytree of arrays, but it has "
                    f"{leaf!r} ({type(leaf).__name__}); pass static values as "
                    "options, and convert numbers with jnp.asarray."
                )
            if leaf.dtype.name in _NO_BYTES or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                raise errors.CodecError(
                    f"codec {self.name!r}: encode gives {leaf.dtype.name}, whose values are no "
                    "whole bytes; use toolkit.pack, of keys jax.random.key_data."
                )
        return payload

    def decode(self, wire: Wire, shape: Sequence[int], dtype: Any, to: Any = None) -> Array:
        shape, dtype = tuple(shape), jnp.dtype(dtype)
        to = jnp.dtype(to or dtype)
        if not math.prod(shape):
            return jnp.zeros(shape, to)
        x = self.codec.decode(wire, shape, dtype, self.options)
        given = (getattr(x, "shape", None), getattr(x, "dtype", None))
        if given != (shape, dtype):
            raise errors.CodecError(
                f"codec {self.name!r}: decode must give {dtype.name}{list(shape)}, which is what "
                f"was encoded, not {_type(x)}. It gets both as shape= and dtype=."
            )
        return x.astype(to)


def _type(x: Any) -> str:
    if not hasattr(x, "dtype"):
        return f"{x!r} ({type(x).__name__})"
    return f"{x.dtype.name}{list(x.shape)}"

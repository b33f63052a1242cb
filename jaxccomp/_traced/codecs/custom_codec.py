"""Codecs that programs register (`jaxccomp.register_codec`): two functions, adapted to `Codec`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxccomp import _jax, errors
from jaxccomp._codecs import specs, table
from jaxccomp._codecs.table import CodecInfo, CustomCodec
from jaxccomp._traced.codecs.codec import REAL_FLOATS, Array, Codec, Wire

C = TypeVar("C", bound=type)

_SIGNATURES = {
    "encode": ("x", "options", "key"),
    "decode": ("payload", "shape", "dtype", "options"),
}


def register_codec(name: str, **options: table.Value) -> Callable[[C], C]:
    """Register a class with two functions as a codec for all operations.

    The class only holds the functions, and is never instantiated::

        encode(x, options, key) -> payload
        decode(payload, shape, dtype, options) -> x

    ``x`` is an array of one of ``dtypes``. In reductions it is a flat piece of the operand,
    otherwise a block of the operand, in its shape. The payload is a pytree of arrays; their shapes
    and dtypes depend only on the shape and dtype of ``x``. `decode` returns an array with the
    ``shape`` and ``dtype`` of ``x``. Both functions are traced, and batched by ``vmap``.
    ``options`` has the options as attributes. The class may also have

    * ``dtypes``: names of the dtypes that it encodes, by default ``("float16", "bfloat16",
      "float32", "float64")``; values of other dtypes are sent as they are;
    * ``random = True``: `encode` gets a typed key of `jax.random`, which differs between ranks,
      operations and steps; otherwise None;
    * ``whole = True``: operands are not cut into pieces, which would be encoded while others are
      sent. Reductions always use flat pieces, one for each rank;
    * ``lossless = True``: values are decoded bit for bit, so error feedback is skipped;
    * ``ratio`` and ``error``: texts for `jaxccomp.codecs.table`.

    All ranks must register the same codecs before they trace programs that use them. Specs have the
    usual form: ``"name:option=value"``. With ``"name|lossless"`` the engine also encodes the
    payload's bytes. Operations with the codec are composed of the engine's operations, or, with
    ``backend="xla"``, of jax.lax: a reduction exchanges the encoded parts of the ranks, decodes and
    sums them, and gathers the encoded sums (CaSync in HiPress, SOSP 2021).

    A class that is defined again, as in a notebook, replaces the earlier class. Programs compiled
    with the earlier class are recompiled.

    Args:
      name: the name in specs, of the characters a to z, 0 to 9 and ``_``.
      **options: the options in specs, with their defaults: numbers and bools.

    Raises:
      NameTakenError: when the name is taken or invalid.
      CodecError: when a function is missing or has other arguments, or an option is neither number
        nor bool.

    Example:
      >>> import jax.numpy as jnp, jaxccomp
      >>> @jaxccomp.register_codec("halves", steps=100)
      ... class Halves:
      ...     '''One scale for all.'''
      ...     def encode(x, options, key):
      ...         scale = jaxccomp.toolkit.greatest(x) / options.steps
      ...         return jnp.round(x / jnp.where(scale > 0, scale, 1)).astype(jnp.int8), scale
      ...     def decode(payload, shape, dtype, options):
      ...         codes, scale = payload
      ...         return (codes * scale).astype(dtype)
      >>> report = jaxccomp.toolkit.check("halves")
      >>> round(report.ratio, 1), report.contraction > 0.99
      (4.0, True)
    """

    def register(functions: C) -> C:
        source = f"{functions.__module__}.{functions.__qualname__}"
        encode, decode = (_function(name, functions, each) for each in _SIGNATURES)
        info = CodecInfo(
            name,
            description=(inspect.getdoc(functions) or source).splitlines()[0],
            ratio=getattr(functions, "ratio", ""),
            error=getattr(functions, "error", ""),
            lossless=getattr(functions, "lossless", False),
            dtypes=tuple(getattr(functions, "dtypes", REAL_FLOATS)),
            options=tuple(table.option_info(*item) for item in options.items()),
        )
        specs.register(
            table.CustomCodec(
                info,
                options,
                encode,
                decode,
                random=getattr(functions, "random", False),
                whole=getattr(functions, "whole", False),
                source=source,
            )
        )
        return functions

    return register


def _function(codec: str, functions: type, name: str) -> Callable[..., object]:
    expected = _SIGNATURES[name]
    function = getattr(functions, name, None)
    given = tuple(inspect.signature(function).parameters) if callable(function) else None
    if not callable(function) or given is None or len(given) != len(expected):
        raise errors.CodecError(
            f"codec {codec!r}: {functions.__qualname__} needs a function {name}"
            f"({', '.join(expected)}), "
            + ("but has none." if given is None else f"not {name}({', '.join(given)}).")
        )
    return function


# --- Registered codecs in the form of the package's JAX codecs ------------------------------------

# Types of which XLA packs several values into a byte.
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
                f"codec {self.name!r}: the payload's shapes must depend only on the shape and "
                "dtype of x, but encode makes them depend on the values of x. Keep a number of "
                "values that is known when tracing (toolkit.filter_top, "
                f"jnp.nonzero(..., size=)). JAX says: {str(error).splitlines()[0]}"
            ) from error
        for leaf in jax.tree.leaves(payload):
            if not isinstance(leaf, jax.Array):
                raise errors.CodecError(
                    f"codec {self.name!r}: encode must return a pytree of arrays, but a leaf is "
                    f"{leaf!r} ({type(leaf).__name__}); pass static values as "
                    "options, and convert numbers with jnp.asarray."
                )
            if leaf.dtype.name in _NO_BYTES or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                raise errors.CodecError(
                    f"codec {self.name!r}: encode returns {leaf.dtype.name}, whose values do not "
                    "have a whole number of bytes; use toolkit.pack, and jax.random.key_data for "
                    "keys."
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
                f"codec {self.name!r}: decode must return {dtype.name}{list(shape)}, the dtype and "
                f"shape of x, not {_type(x)}. It gets both as dtype= and shape=."
            )
        return x.astype(to)


def _type(x: Any) -> str:
    if not hasattr(x, "dtype"):
        return f"{x!r} ({type(x).__name__})"
    return f"{x.dtype.name}{list(x.shape)}"

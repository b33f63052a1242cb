"""`jaxccomp.register_codec`: makes a codec of two functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from jaxccomp import errors
from jaxccomp._codecs import custom, specs
from jaxccomp._codecs.table import CodecInfo
from jaxccomp._traced.codecs.codec import REAL_FLOATS

C = TypeVar("C", bound=type)

_SIGNATURES = {
    "encode": ("x", "options", "key"),
    "decode": ("payload", "shape", "dtype", "options"),
}


def register_codec(name: str, **options: custom.Value) -> Callable[[C], C]:
    """Registers a class with two functions as a codec, which every operation then takes.

    The class is only what holds them; it is never instantiated::

        encode(x, options, key) -> payload
        decode(payload, shape, dtype, options) -> x

    ``x`` is an array of one of ``dtypes``: in reductions a flat piece of the operand, else a block
    of it in its shape. The payload is a pytree of arrays whose shapes and dtypes follow from those
    of ``x`` alone. `decode` gives an array of ``shape`` and ``dtype``, those of ``x``. Both are
    traced, and batched by ``vmap``. ``options`` has the options as attributes. Beside the functions
    the class may have

    * ``dtypes``: names of the dtypes that it codes, by default ``("float16", "bfloat16",
      "float32", "float64")``; values of others travel as they are;
    * ``random = True``: `encode` gets a typed key of `jax.random`, which differs from rank to rank,
      operation to operation and step to step; else None;
    * ``whole = True``: operands are not cut into pieces, of which one is coded while another
      travels. Reductions are made of flat pieces in any case, one for each rank;
    * ``lossless = True``: values come back bit for bit, so that error feedback is left out;
    * ``ratio`` and ``error``: what `jaxccomp.codecs.table` says of it, in words.

    All ranks must register the same codecs before the programs that use them are traced. Specs take
    it as any other: ``"name:option=value"``, and ``"name|lossless"``, where the engine then codes
    the payload's bytes. Operations with it are composed of those of the engine, or, with
    ``backend="xla"``, of jax.lax: a reduction exchanges codes of each rank's part, sums what they
    decode to, and gathers codes of the sums (HiPress, SOSP 2021, calls that CaSync).

    Args:
      name: what specs call it: of a to z, 0 to 9 and ``_``.
      **options: what can be set in a spec, with defaults: numbers and bools.

    Raises:
      NameTakenError: where the name is taken, or none.
      CodecError: where a function is missing or takes other arguments, or an option is neither
        number nor bool. A class that is defined again, as in a notebook, replaces
        the one before; what was compiled with it is forgotten.

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
            options=tuple(custom.option_info(*item) for item in options.items()),
        )
        specs.register(
            custom.CustomCodec(
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
    if given is None or len(given) != len(expected):
        raise errors.CodecError(
            f"codec {codec!r}: {functions.__qualname__} needs a function {name}"
            f"({', '.join(expected)}), "
            + ("but has none." if given is None else f"not {name}({', '.join(given)}).")
        )
    return function

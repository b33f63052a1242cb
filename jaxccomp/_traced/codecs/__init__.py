"""The codecs of backend="xla": codecs of fixed output size, written in jax.numpy.

Definitions, options and error bounds are the same as the engine's (docs/wire_format_lossy.md,
docs/wire_format_sparse_library.md), but a whole array is one chunk, and its encoding is a few
arrays instead of the engine's concatenated bytes. XLA's shapes are static, so a lossless codec
cannot send fewer bytes: lossless codecs of a spec are ignored here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax.numpy as jnp

from jaxccomp import errors
from jaxccomp._codecs import specs, table
from jaxccomp._traced.codecs.cast import Cast, StochasticBf16, Unchanged
from jaxccomp._traced.codecs.codec import Codec, Options, Wire
from jaxccomp._traced.codecs.custom_codec import Custom
from jaxccomp._traced.codecs.operators import hash_of, key_for, shared_key, words_of
from jaxccomp._traced.codecs.quantize import Integers, SmallFloats
from jaxccomp._traced.codecs.sign import OneBit, Ternary, Threshold
from jaxccomp._traced.codecs.sparse import RandomK, TopK

__all__ = [
    "CODECS",
    "Codec",
    "Options",
    "Unchanged",
    "Wire",
    "find",
    "find_for",
    "hash_of",
    "key_for",
    "shared_key",
    "words_of",
]

CODECS: dict[str, Callable[[Options], Codec]] = {
    "bf16": lambda options: (
        StochasticBf16() if options["rounding"] == "stochastic" else Cast(jnp.bfloat16)
    ),
    "fp16": lambda options: Cast(jnp.float16),
    "int8": lambda options: Integers(8, options),
    "int4": lambda options: Integers(4, options),
    "int2": lambda options: Integers(2, options),
    "fp8_e4m3": lambda options: SmallFloats(3, 7, 8, options),
    "fp8_e5m2": lambda options: SmallFloats(2, 15, 15, options),
    "onebit": OneBit,
    "ternary": Ternary,
    "tbq": Threshold,
    "topk": TopK,
    "randomk": RandomK,
}


def find(spec: str) -> Codec | None:
    """Return the codec of a canonical spec; None if values are sent as they are.

    Raises:
      UnknownNameError: for a codec without a fixed rate.
    """
    first = specs.parse(spec).stages[0]  # only a lossless one can follow
    if (codec := table.CODECS.find(first.name)) is not None:
        return Custom(codec, dict(first.options))
    return _find_own(first)


@functools.cache
def _find_own(first: specs.Stage) -> Codec | None:
    info = specs.table()[first.name]
    if info.lossless:
        return None
    if first.name not in CODECS:
        lossless = [name for name, row in specs.table().items() if row.lossless]
        raise errors.unknown(
            'codec of the traced plane (backend="xla"):',
            first.name,
            [*lossless, *CODECS],
            hint="XLA's shapes are static, so only codecs of a fixed rate exist there.",
        )
    defaults = {option.name: option.default for option in info.options}
    return CODECS[first.name](defaults | dict(first.options))


def find_for(spec: str, dtype: str) -> Codec | None:
    """`find` for values of a dtype: also None if the codec does not support it."""
    codec = find(spec)
    return codec if codec is not None and dtype in codec.dtypes else None

"""Codecs: their specs, and tensors as self-describing bytes.

A spec describes the encoding of values before they are sent. It is the ``codec=`` argument of an
operation::

    spec   = stage ["|" stage]
    stage  = name [":" key "=" value {"," key "=" value}]

Examples: ``"bf16"``, ``"int8:block=64,rounding=stochastic"``, ``"bf16|lossless"``. A second stage
encodes the bytes of the first. ``None`` and ``"raw"`` send values as they are. ``"auto"`` is
bit-exact: the same as ``"raw"``; with a reference ``"delta"`` on the CPU and ``"lossless"`` on
other platforms. With a profile, ``"auto"`` is ``"raw"`` or ``"lossless"`` for each call, and
``"auto:int8"`` also uses ``"int8"`` (or another codec) for calls where it is faster than both;
without a profile ``"auto:int8"`` is ``"int8"`` (docs/planner.md). A :class:`Stage` or a
:class:`CodecSpec` may replace the string.

:func:`table` lists every codec with its options, dtypes, ratio and error; :func:`error_bound`
returns the bound as numbers. :func:`encode` and :func:`decode` encode tensors for files or messages
(the bytes: docs/wire_format.md).
"""

from jaxccomp._codecs.frames import FrameInfo, decode, encode, inspect
from jaxccomp._codecs.specs import (
    BF16,
    LOSSLESS,
    RAW,
    CodecInfo,
    CodecLike,
    CodecSpec,
    ErrorBound,
    Stage,
    canonical,
    canonical_choice,
    choices,
    error_bound,
    find_custom,
    is_lossless,
    is_raw,
    parse,
    stage,
    table,
)
from jaxccomp._codecs.table import OptionInfo

__all__ = [
    "BF16",
    "LOSSLESS",
    "RAW",
    "CodecInfo",
    "CodecLike",
    "CodecSpec",
    "ErrorBound",
    "FrameInfo",
    "OptionInfo",
    "Stage",
    "canonical",
    "canonical_choice",
    "choices",
    "decode",
    "encode",
    "error_bound",
    "find_custom",
    "inspect",
    "is_lossless",
    "is_raw",
    "parse",
    "stage",
    "table",
]

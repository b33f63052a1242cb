"""Codecs: their specs, and tensors as self-describing bytes.

A spec says what happens to values before they travel. It is what the ``codec=`` argument of an
operation takes::

    spec   = stage ["|" stage]
    stage  = name [":" key "=" value {"," key "=" value}]

as in ``"bf16"``, ``"int8:block=64,rounding=stochastic"`` or ``"bf16|lossless"``; a second stage
codes the bytes of the first. ``None`` and ``"raw"`` send values as they are; ``"auto"`` is
bit-exact: the same as ``"raw"``, and in operations with a reference ``"delta"``, on other platforms
than the CPU ``"lossless"``. With a profile it is ``"raw"`` or ``"lossless"``, call by call, and
``"auto:int8"`` leaves ``"int8"`` (or any other codec) out where it is not faster than they are;
without one it is ``"int8"`` (docs/planner.md). A :class:`Stage` or a :class:`CodecSpec` may be
given instead of a string.

:func:`table` has every codec with its options, dtypes, ratio and error; :func:`error_bound` the
bound as numbers. :func:`encode` and :func:`decode` use codecs on tensors that go into files or
messages (docs/wire_format.md has the bytes).
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

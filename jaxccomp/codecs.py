"""Codec specs: what the ``codec=`` argument of an operation may say.

The grammar, of strings::

    spec   = stage {"|" stage}
    stage  = name [":" key "=" value {"," key "=" value}]

as in ``"bf16"``, ``"int8:block=32"`` or ``"bf16|lossless"``. ``None`` and ``"raw"`` send the
values as they are; ``"auto"`` is bit-exact and takes whichever of the lossless codecs and raw is
predicted to be faster. A :class:`Stage` or a :class:`CodecSpec` may be given instead of a string.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxccomp import _engine, errors

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_GRAMMAR = 'a spec reads "name", "name:key=value,key=value" or "first|second"'


@dataclasses.dataclass(frozen=True)
class Stage:
    """One codec with its options; ``options`` are (key, value) pairs, sorted by key."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        pairs = ",".join(f"{key}={value}" for key, value in self.options)
        return f"{self.name}:{pairs}" if pairs else self.name

    def __or__(self, other: Stage | CodecSpec) -> CodecSpec:
        return CodecSpec((self,)) | other


@dataclasses.dataclass(frozen=True)
class CodecSpec:
    """What happens to values before they travel: stages, applied first to last."""

    stages: tuple[Stage, ...]

    def __str__(self) -> str:
        return "|".join(map(str, self.stages))

    def __or__(self, other: Stage | CodecSpec) -> CodecSpec:
        more = other.stages if isinstance(other, CodecSpec) else (other,)
        return CodecSpec(self.stages + more)


@dataclasses.dataclass(frozen=True)
class CodecInfo:
    """What is known of a codec, whether the engine is there or not."""

    name: str
    description: str
    lossless: bool = False
    fixed_rate: bool = True
    relative_error: float = 0.0
    keys: tuple[str, ...] = ()


CodecLike = str | Stage | CodecSpec | None

RAW = Stage("raw")
LOSSLESS = Stage("lossless")
BF16 = Stage("bf16")

# What holds without the engine: the traced plane has these codecs too.
_STATIC_ROWS = (
    CodecInfo("raw", "values travel as they are", lossless=True),
    CodecInfo(
        "lossless",
        "bit-exact; the exponents of floats in fewer bits (docs/wire_format.md)",
        lossless=True,
        fixed_rate=False,
    ),
    CodecInfo(
        "bf16",
        "float32 and float64 rounded to bfloat16: half or a quarter of the bytes",
        relative_error=2.0**-8,
    ),
)
_STATIC: Mapping[str, CodecInfo] = {row.name: row for row in _STATIC_ROWS}


@functools.cache
def table() -> Mapping[str, CodecInfo]:
    """The codecs that exist here, by name."""
    rows = dict(_STATIC)
    if _engine.available():
        for row in _engine.load().describe()["codecs"]:
            rows[row["name"]] = _info(row)
    return rows


def _find(name: str) -> CodecInfo | None:
    # The engine is asked only for what is not known without it.
    return _STATIC.get(name) or table().get(name)


def stage(name: str, **options: Any) -> Stage:
    """Builds a stage: ``stage("int8", block=32)`` is ``"int8:block=32"``."""
    return Stage(name, tuple(sorted((key, str(value)) for key, value in options.items())))


def parse(codec: CodecLike) -> CodecSpec:
    """Reads a ``codec=`` argument and checks every name in it.

    Returns:
      The spec in canonical form: ``None`` and ``"auto"`` resolved, options sorted, ``raw`` stages
      dropped where another stage is left.

    Raises:
      UnknownNameError: for a codec or a key that does not exist; the text lists those that do.
      InvalidArgumentError: for a string that is not in the grammar.
    """
    if codec is None:
        return CodecSpec((RAW,))
    if isinstance(codec, Stage):
        stages: Iterable[Stage] = (codec,)
    elif isinstance(codec, CodecSpec):
        stages = codec.stages
    elif isinstance(codec, str):
        return _parse_text(codec)
    else:
        raise errors.InvalidArgumentError(
            f"codec must be None, a string or a codec spec, not {codec!r} "
            f"({type(codec).__name__}); {_GRAMMAR}."
        )
    return _canonical(stages, str(codec))


def canonical(codec: CodecLike) -> str:
    """The canonical text of a ``codec=`` argument: what the engine is told."""
    return str(parse(codec))


def is_raw(codec: CodecLike) -> bool:
    """Whether ``codec`` leaves the values as they are."""
    return parse(codec).stages == (RAW,)


@functools.lru_cache(maxsize=256)
def _parse_text(text: str) -> CodecSpec:
    if text.strip() == "auto":
        return CodecSpec((_choose_exact(),))
    return _canonical([_parse_stage(part, text) for part in text.split("|")], text)


def _choose_exact() -> Stage:
    # "auto" promises bit-exactness; among the exact codecs only a measured profile could prefer
    # another one to raw.
    return RAW


def _parse_stage(part: str, text: str) -> Stage:
    name, colon, tail = part.strip().partition(":")
    pairs = tail.split(",") if colon else []
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = (word.strip() for word in pair.partition("="))
        if not (equals and value and _NAME.fullmatch(key)):
            raise errors.InvalidArgumentError(
                f"codec {text!r}: {pair.strip()!r} is not key=value; {_GRAMMAR}."
            )
        if key in options:
            raise errors.InvalidArgumentError(f"codec {text!r}: key {key!r} is given twice.")
        options[key] = value
    return stage(name.strip(), **options)


def _canonical(stages: Iterable[Stage], text: str) -> CodecSpec:
    stages = tuple(stages)
    for each in stages:
        _check(each, text)
    coding = tuple(each for each in stages if each.name != RAW.name)
    # A stage after the first reads encoded bytes, not values, so only a codec that takes any
    # bytes and gives them back exactly can stand there.
    for each in coding[1:]:
        found = _find(each.name)
        if found and not found.lossless:
            raise errors.InvalidArgumentError(
                f"codec {text!r}: {each.name!r} is lossy and can only be the first stage."
            )
    return CodecSpec(coding or (RAW,))


def _check(each: Stage, text: str) -> None:
    if each.name == "auto":
        raise errors.InvalidArgumentError(f'codec {text!r}: "auto" stands alone.')
    found = _find(each.name)
    if found is None:
        valid = [*table(), "auto"]
        raise errors.unknown("codec", each.name, valid, hint=f"In {text!r}; {_GRAMMAR}.")
    for key, _ in each.options:
        if key not in found.keys:
            raise errors.unknown(f"key of codec {each.name!r}:", key, found.keys)


def _info(row: Mapping[str, Any]) -> CodecInfo:
    names = {field.name for field in dataclasses.fields(CodecInfo)}
    values = {key: value for key, value in row.items() if key in names}
    if "keys" in values:
        values["keys"] = tuple(values["keys"])
    return CodecInfo(**values)

"""Codec specs: the grammar, the table, and properties of codecs. See :mod:`jaxccomp.codecs`."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from jaxccomp import errors
from jaxccomp._codecs.table import CODECS, CodecInfo, CustomCodec, canonical_options, own_table
from jaxccomp._native import engine

_NAME = re.compile(r"[a-z][a-z0-9_]*")
# "auto" chooses an exact codec. "auto:<codec>" also chooses that codec where it is faster.
_AUTO = "auto"
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
    """The encoding of values before they are sent: stages, applied in order."""

    stages: tuple[Stage, ...]

    def __str__(self) -> str:
        return "|".join(map(str, self.stages))

    def __or__(self, other: Stage | CodecSpec) -> CodecSpec:
        more = other.stages if isinstance(other, CodecSpec) else (other,)
        return CodecSpec(self.stages + more)


@dataclasses.dataclass(frozen=True)
class ErrorBound:
    """The largest difference between a decoded and an encoded value.

    For finite ``|x| <= range``,
    ``|decoded - x| <= relative * |x| + block * max|block| + absolute``, where the maximum is over
    the block of ``block_values`` consecutive values around ``x`` (0: over its chunk). Values beyond
    ``range`` become infinite. With ``keeps_nonfinite``, NaN and infinity are kept. Otherwise a
    block that has one decodes to NaN completely, so that NaN and infinity are never hidden.
    """

    relative: float
    block: float
    absolute: float
    block_values: int
    range: float
    keeps_nonfinite: bool


CodecLike = str | Stage | CodecSpec | None

RAW = Stage("raw")
LOSSLESS = Stage("lossless")
BF16 = Stage("bf16")


def table() -> Mapping[str, CodecInfo]:
    """Returns all codecs by name: this package's, then the registered ones.

    Example:
      >>> import jaxccomp
      >>> jaxccomp.codecs.table()["bf16"].lossless
      False
    """
    return {**own_table(), **{name: each.info for name, each in CODECS.registered().items()}}


def register(codec: CustomCodec) -> None:
    """Adds a codec to the table."""
    CODECS.add(codec)
    _parse_text.cache_clear()


def find_custom(codec: CodecLike) -> CustomCodec | None:
    """Return the first stage's codec if the program registered it, else None."""
    return CODECS.find(parse(codec).stages[0].name)


def stage(name: str, **options: Any) -> Stage:
    """Builds a stage: ``stage("int8", block=64)`` is ``"int8:block=64"``.

    Raises:
      UnknownNameError: for an unknown codec or option.
      InvalidArgumentError: for an invalid value.
      EngineUnavailableError: for a codec whose library is not found.
    """
    made = _stage(name, options)
    parse(made)
    return made


def _stage(name: str, options: Mapping[str, Any]) -> Stage:
    pairs = (
        (key, str(value).lower() if value is True or value is False else str(value))
        for key, value in options.items()
    )
    return Stage(name, tuple(sorted(pairs)))


def parse(codec: CodecLike) -> CodecSpec:
    """Reads a ``codec=`` argument and checks every name and value in it.

    Returns:
      The spec in canonical form: ``None`` and ``"auto"`` resolved, options sorted and without
      defaults, ``raw`` stages removed if another stage remains.

    Raises:
      UnknownNameError: for an unknown codec or key; the text lists the known ones.
      InvalidArgumentError: for a string that is not in the grammar, or an invalid value.
      EngineUnavailableError: for a codec whose library is not found.

    Example:
      >>> import jaxccomp
      >>> str(jaxccomp.codecs.parse("raw | bf16"))
      'bf16'
    """
    if codec is None:
        return CodecSpec((RAW,))
    if isinstance(codec, str | Stage | CodecSpec):
        return _parse_text(str(codec))
    raise errors.InvalidArgumentError(
        f"codec must be None, a string or a codec spec, not {codec!r} "
        f"({type(codec).__name__}); {_GRAMMAR}."
    )


def canonical(codec: CodecLike) -> str:
    """Returns the canonical text of a ``codec=`` argument, as the engine takes it."""
    return str(parse(codec))


def canonical_choice(codec: CodecLike) -> str:
    """Returns the same as `canonical`, but keeps "auto" and the prefix "auto:".

    Raises:
      InvalidArgumentError: for "auto:" before a registered codec, and as `parse`.

    Example:
      >>> import jaxccomp
      >>> jaxccomp.codecs.canonical_choice("auto: int8:block=32")
      'auto:int8'
    """
    text = canonical(codec)
    if not _leaves_a_choice(str(codec)):
        return text
    if CODECS.find(_split(text)[0].name) is not None:
        raise errors.InvalidArgumentError(
            f'codec {str(codec)!r}: {text!r} is a registered codec, and "auto:" chooses only '
            "between codecs of this package; omit one of the two."
        )
    return _AUTO if str(codec).strip() == _AUTO else f"{_AUTO}:{text}"


def choices(codec: str) -> tuple[str, ...]:
    """Returns the candidate codecs of a text of `canonical_choice`, preferred ones first.

    Example:
      >>> import jaxccomp
      >>> jaxccomp.codecs.choices("auto:int8"), jaxccomp.codecs.choices("int8")
      (('raw', 'lossless', 'int8'), ('int8',))
    """
    if not _leaves_a_choice(codec):
        return (codec,)
    exact = (str(RAW), str(LOSSLESS))
    return tuple(dict.fromkeys((*exact, canonical(codec))))


def _leaves_a_choice(text: str) -> bool:
    return text.strip().partition(":")[0].strip() == _AUTO


def is_raw(codec: CodecLike) -> bool:
    """Returns whether ``codec`` sends the values uncompressed."""
    return parse(codec).stages == (RAW,)


def is_lossless(codec: CodecLike) -> bool:
    """Returns whether ``codec`` decodes bit for bit the values that it encodes."""
    return all(table()[each.name].lossless for each in parse(codec).stages)


def error_bound(codec: CodecLike, dtype: Any) -> ErrorBound:
    """Returns the bound of the difference between decoded and encoded values.

    Args:
      codec: a spec.
      dtype: of the values.

    Raises:
      InvalidArgumentError: when the codec does not encode ``dtype``, and as :func:`parse`.

    Example:
      >>> import jaxccomp
      >>> jaxccomp.codecs.error_bound("bf16", "float32").relative
      0.00390625
    """
    text, name = canonical(codec), dtype_name(dtype)
    if (own := find_custom(text)) is not None:
        raise errors.InvalidArgumentError(
            f"codec {text!r} is the registered codec {own.source}, whose bound is unknown; its own "
            f"description of the error: {own.info.error or 'none'}."
        )
    valid = engine.load().describe_codec(text)["dtypes"]
    if name not in valid:
        raise errors.unknown(f"dtype of codec {text!r}:", name, valid)
    return ErrorBound(**engine.load().codec_bound(text, name))


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype in frames and tables."""
    import numpy as np

    return np.dtype(dtype).name


@functools.lru_cache(maxsize=256)
def _parse_text(text: str) -> CodecSpec:
    if text.strip() == _AUTO:
        return CodecSpec((RAW,))  # exact; with a profile, the planner may use another exact codec
    if _leaves_a_choice(text):
        rest = text.partition(":")[2]
        if _leaves_a_choice(rest):
            raise _stands_alone(text)
        return _parse_text(rest)
    stages = _split(text)
    for each in stages:
        _check_names(each, text)
    if not engine.available() or any(CODECS.find(each.name) for each in stages):
        return _without_engine(stages, text)
    try:
        return CodecSpec(_split(engine.load().describe_codec(text)["spec"]))
    except ValueError as error:
        raise errors.InvalidArgumentError(_about(text, str(error))) from None
    except RuntimeError as error:
        raise errors.EngineUnavailableError(_about(text, str(error))) from None


# How the engine's errors begin: the codec, or the stage of it that is meant.
_NAMED = re.compile(r"codec '([^']*)'(: | )")


def _about(text: str, error: str) -> str:
    """Return an error of the engine with the spec as the program gives it, once."""
    named = _NAMED.match(error)
    if named is None:
        return f"codec {text!r}: {error}."
    what = error[named.end() :]
    if named[2] == ": ":
        return f"codec {text!r}: {what}."
    return f"codec {text!r} {what}." if named[1] == text else f"codec {text!r}: {error}."


def _stands_alone(text: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(
        f'codec {text!r}: "auto" stands alone, or once before a codec as in "auto:int8".'
    )


def _without_engine(stages: tuple[Stage, ...], text: str) -> CodecSpec:
    coding = tuple(each for each in stages if each.name != "raw") or (RAW,)
    if len(coding) > 2:
        raise errors.InvalidArgumentError(f"codec {text!r}: two stages at most.")
    for each in coding[1:]:
        own = CODECS.find(each.name)
        if own is not None or not table()[each.name].lossless:
            raise errors.InvalidArgumentError(
                f"codec {text!r}: {each.name!r} {'encodes arrays' if own else 'is lossy'} and can "
                "only be the first stage."
            )
    return CodecSpec(tuple(map(_canonical_stage, coding)))


def _canonical_stage(given: Stage) -> Stage:
    options = canonical_options(table()[given.name], given.options)
    if (own := CODECS.find(given.name)) is not None:
        own.options(dict(options))  # checks the types
    return Stage(given.name, options)


def _split(text: str) -> tuple[Stage, ...]:
    return tuple(_parse_stage(part, text) for part in text.split("|"))


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
    return _stage(name.strip(), options)


def _check_names(each: Stage, text: str) -> None:
    if each.name == "auto":
        raise _stands_alone(text)
    own = CODECS.find(each.name)
    found = own.info if own is not None else own_table().get(each.name)
    if found is None:
        raise CODECS.unknown(each.name, hint=f"In {text!r}; {_GRAMMAR}.")
    keys = [option.name for option in found.options]
    for key, _ in each.options:
        if key not in keys:
            raise errors.unknown(f"key of codec {each.name!r}:", key, keys)

"""The table of all codecs: of the engine, and registered by programs."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from jaxccomp import errors
from jaxccomp._native import engine
from jaxccomp._native.registry import Registry


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """An option of a codec.

    Attributes:
      name: the key in specs.
      default: the default value.
      description: its effect.
      choices: the valid values; empty for a number.
      minimum: the smallest valid number.
      maximum: the largest valid number.
    """

    name: str
    default: str
    description: str
    choices: tuple[str, ...] = ()
    minimum: float = 0.0
    maximum: float = 0.0

    @property
    def least(self) -> float:
        """The name of `minimum` in version 0.1."""
        errors.warn_renamed("OptionInfo.least", "minimum")
        return self.minimum

    @property
    def most(self) -> float:
        """The name of `maximum` in version 0.1."""
        errors.warn_renamed("OptionInfo.most", "maximum")
        return self.maximum


@dataclasses.dataclass(frozen=True)
class CodecInfo:
    """A row of the table of codecs.

    Attributes:
      name: the name in specs.
      description: one line about the codec.
      ratio: the typical ratio, as text.
      error: the error bound, as text; empty if lossless.
      lossless: whether values are decoded bit for bit.
      dtypes: names of the dtypes that it encodes; operations send values of other dtypes raw.
      options: its options.
      missing: why it cannot be used here, such as a missing library; else empty.
    """

    name: str
    description: str
    ratio: str = ""
    error: str = ""
    lossless: bool = False
    dtypes: tuple[str, ...] = ()
    options: tuple[OptionInfo, ...] = ()
    missing: str = ""


_WIDE = ("float32", "float64")
_REAL = ("float16", "bfloat16", *_WIDE)


def _block(meaning: str, default: str, *choices: str) -> OptionInfo:
    return OptionInfo("block", default, meaning, choices)


def _rounding(default: str, meaning: str) -> OptionInfo:
    return OptionInfo("rounding", default, meaning, ("nearest", "stochastic"))


_SCALED = _block("values that share a scale", "32", "32", "64", "128", "256")
_EITHER = _rounding(
    "nearest", "to the nearest, or up or down at random such that the mean is exact"
)
_DENSITY = OptionInfo("density", "0.01", "the part of the values that travels", (), 1e-6, 1)

_ROWS = (
    CodecInfo("raw", "the bytes as they are", "1", lossless=True),
    CodecInfo(
        "lossless",
        "bit for bit: exponents and other predictable bytes in short codes",
        "1.5 for bfloat16 and 1.2 for float32 weights, 2.9 for float32 made of bfloat16",
        lossless=True,
    ),
    CodecInfo(
        "bf16",
        "float32 and float64 as bfloat16, rounded to nearest even or at random",
        "2 for float32, 4 for float64",
        "2^-8 of the value; twice that when stochastic",
        dtypes=_WIDE,
        options=(_EITHER,),
    ),
    CodecInfo(
        "fp16",
        "float32 and float64 as float16, rounded to nearest even",
        "2 for float32, 4 for float64",
        "2^-11 of the value, at least 2^-25; beyond 65504 infinity",
        dtypes=_WIDE,
    ),
    CodecInfo(
        "int8",
        "blocks of 8-bit integers times a bfloat16 scale",
        "3.8 for float32, 1.9 for half types; 4 and 2 with large blocks",
        "1/252 of the block's greatest value; twice that when stochastic",
        dtypes=_REAL,
        options=(_SCALED, _EITHER),
    ),
    CodecInfo(
        "int4",
        "blocks of 4-bit integers times a bfloat16 scale",
        "7.1 for float32, 3.6 for half types; 8 and 4 with large blocks",
        "1/13 of the block's greatest value; twice that when stochastic",
        dtypes=_REAL,
        options=(_SCALED, _EITHER),
    ),
    CodecInfo(
        "int2",
        "blocks of -1, 0 and 1 times a bfloat16 scale",
        "12.8 for float32, 6.4 for half types; 16 and 8 with large blocks",
        "half of the block's greatest value; twice that when stochastic",
        dtypes=_REAL,
        options=(_SCALED, _EITHER),
    ),
    CodecInfo(
        "fp8_e4m3",
        "blocks of 8-bit floats (4 bits of exponent) times a power of two",
        "3.9 for float32, 1.9 for half types",
        "1/16 of the value, at least 2^-17 of the block's greatest value",
        dtypes=_REAL,
        options=(_SCALED,),
    ),
    CodecInfo(
        "fp8_e5m2",
        "blocks of 8-bit floats (5 bits of exponent) times a power of two",
        "3.9 for float32, 1.9 for half types",
        "1/8 of the value, at least 2^-31 of the block's greatest value",
        dtypes=_REAL,
        options=(_SCALED,),
    ),
    CodecInfo(
        "onebit",
        "a block's signs, and the means of its values with each sign",
        "30 for float32, 15 for half types; 32 and 16 with large blocks",
        "the block's greatest value at most; use error feedback",
        dtypes=_REAL,
        options=(_block("values that share two means", "1024", "256", "1024", "4096"),),
    ),
    CodecInfo(
        "ternary",
        "blocks of -1, 0 and 1 times the greatest value, right in the mean",
        "16 for float32, 8 for half types",
        "the block's greatest value at most; half of it when nearest",
        dtypes=_REAL,
        options=(
            _block("values that share a scale", "1024", "256", "1024", "4096"),
            _rounding(
                "stochastic",
                "up or down at random such that the mean is exact, or to the nearest",
            ),
        ),
    ),
    CodecInfo(
        "tbq",
        "values of at least a threshold become that threshold, others 0",
        "16 for float32, 8 for half types",
        "the value itself at most; use error feedback",
        dtypes=_REAL,
        options=(
            OptionInfo(
                "threshold",
                "0.001",
                "what larger values become, with their sign; smaller ones become 0",
                (),
                1e-30,
                1e30,
            ),
        ),
    ),
    CodecInfo(
        "topk",
        "the largest values of each chunk by magnitude, exactly; the others become 0",
        "1 / density times 0.67 for float32, 0.5 for bfloat16",
        "up to the value itself; a chunk that has NaN or infinity becomes NaN",
        dtypes=_REAL,
        options=(_DENSITY,),
    ),
    CodecInfo(
        "randomk",
        "values at random places, one out of each of equal parts, the same on all ranks unless "
        "unbiased; the others become 0",
        "1 / density",
        "up to the value itself, 1 / density times that if unbiased; a chunk that has NaN or "
        "infinity becomes NaN",
        dtypes=_REAL,
        options=(
            _DENSITY,
            OptionInfo(
                "unbiased",
                "false",
                "true: multiplies each kept value by the number of values that it stands for, so "
                "that the decoded values equal the input on average",
                ("false", "true"),
            ),
        ),
    ),
)
TABLE = {row.name: row for row in _ROWS}


def canonical_options(
    codec: CodecInfo, given: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Check the options of a codec, and return the ones that differ from their defaults."""
    known = {option.name: option for option in codec.options}
    pairs = [(key, _checked(codec.name, known[key], value)) for key, value in given]
    return tuple((key, value) for key, value in pairs if value != known[key].default)


def _checked(name: str, option: OptionInfo, value: str) -> str:
    if option.choices:
        if value in option.choices:
            return value
        valid = f"one of {errors.listed(option.choices)}"
    else:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if option.minimum <= number <= option.maximum:
            return repr(number).removesuffix(".0")
        valid = f"a number from {option.minimum:g} to {option.maximum:g}"
    raise errors.InvalidArgumentError(
        f"codec {name!r}: {option.name}={value} is not valid, it must be {valid}."
    )


@functools.cache
def own_table() -> Mapping[str, CodecInfo]:
    """Return this package's codecs, by name."""
    if not engine.available():
        return TABLE
    return {row["name"]: _info(row) for row in engine.load().codecs()}


def _info(row: dict[str, Any]) -> CodecInfo:
    options = tuple(
        OptionInfo(**{**option, "choices": tuple(option["choices"])}) for option in row["options"]
    )
    return CodecInfo(**{**row, "dtypes": tuple(row["dtypes"]), "options": options})


# --- Registered codecs ----------------------------------------------------------------------------

Value = bool | int | float


@dataclasses.dataclass(frozen=True)
class CustomCodec:
    """A codec written in JAX.

    Attributes:
      info: its row in the table.
      defaults: default values of the options, as Python numbers or bools.
      encode: ``encode(x, options, key) -> payload``.
      decode: ``decode(payload, shape, dtype, options) -> values``.
      random: whether ``encode`` gets a key.
      whole: whether it encodes whole arrays of any shape, not pieces of them.
      source: the class's module and name; only a codec from the same source may replace this one.
    """

    info: CodecInfo
    defaults: Mapping[str, Value]
    encode: Callable[..., Any]
    decode: Callable[..., Any]
    random: bool
    whole: bool
    source: str

    @property
    def name(self) -> str:
        """The name in specs."""
        return self.info.name

    def options(self, given: Mapping[str, str]) -> types.SimpleNamespace:
        """Return the options for `encode` and `decode`: attributes of the defaults' types."""
        values = {name: self._value(name, text) for name, text in given.items()}
        return types.SimpleNamespace(**{**self.defaults, **values})

    def _value(self, name: str, text: str) -> Value:
        kind = type(self.defaults[name])
        if kind is bool:
            return text == "true"
        try:
            return kind(text)
        except ValueError:
            raise errors.InvalidArgumentError(
                f"codec {self.info.name!r}: {name}={text} is not valid, it must be of type "
                f"{kind.__name__}, such as {self.defaults[name]}."
            ) from None


def option_info(name: str, default: Value) -> OptionInfo:
    """Return the row of an option, from its default."""
    if isinstance(default, bool):
        return OptionInfo(name, str(default).lower(), "", ("false", "true"))
    if isinstance(default, int | float):
        return OptionInfo(name, str(default), "", (), float("-inf"), float("inf"))
    raise errors.CodecError(
        f"the default of a codec's option {name!r} must be a number or a bool, not {default!r}: "
        "the text in a spec is converted to its type."
    )


CODECS: Registry[CustomCodec] = Registry("codec", lambda scope: ("auto", *own_table()))

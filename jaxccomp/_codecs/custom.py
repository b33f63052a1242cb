"""Codecs that programs register (`jaxccomp.register_codec`)."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any

from jaxccomp import errors
from jaxccomp._codecs.table import CodecInfo, OptionInfo, own_table
from jaxccomp._native.registry import Registry

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
        f"option {name!r} of a codec must be a number or a bool, not {default!r}: specs have them "
        "as text, and say of which type they are by their defaults."
    )


CODECS: Registry[CustomCodec] = Registry("codec", lambda scope: ("auto", *own_table()))

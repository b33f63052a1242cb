"""Codecs that are not ours: those that programs register (`jaxccomp.register_codec`)."""

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
    """A codec that is written in JAX.

    Attributes:
      info: as of any codec.
      defaults: the options' values where they are not given, of their Python types.
      encode: ``encode(x, options, key) -> payload``.
      decode: ``decode(payload, shape, dtype, options) -> values``.
      random: whether ``encode`` gets a key.
      whole: whether it codes arrays as they are, of any shape, rather than pieces of them.
      source: where it is written: a codec of the same name from elsewhere is another one.
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
        """As specs have it."""
        return self.info.name

    def options(self, given: Mapping[str, str]) -> types.SimpleNamespace:
        """The options as `encode` and `decode` get them: attributes of the defaults' types."""
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
    """The row of an option, by its default alone."""
    if isinstance(default, bool):
        return OptionInfo(name, str(default).lower(), "", ("false", "true"))
    if isinstance(default, int | float):
        return OptionInfo(name, str(default), "", (), float("-inf"), float("inf"))
    raise errors.CodecError(
        f"option {name!r} of a codec must be a number or a bool, not {default!r}: specs have them "
        "as text, and say of which type they are by their defaults."
    )


CODECS: Registry[CustomCodec] = Registry("codec", lambda scope: ("auto", *own_table()))

"""Parsers shared by commands: sizes and lists of names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jaxccomp import errors

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse_size(text: str) -> int:
    """The bytes of a size such as "64KiB"."""
    match = re.fullmatch(r"(\d+)([KMG]iB|B|)", text.strip())
    if not match or int(match[1]) == 0:
        raise errors.InvalidArgumentError(f"a size reads like 64KiB or 1MiB, not {text!r}.")
    return int(match[1]) * _UNITS[match[2]]


def names(text: str, kind: str, valid: Iterable[str]) -> tuple[str, ...]:
    """The names in a text such as "bcast,allreduce"; raises for an invalid one."""
    given = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in given:
        if name not in valid:
            raise errors.unknown(kind, name, valid)
    return given

"""What commands share: sizes as people write them, and a line that says what goes on."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator

from jaxccomp import errors

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of a size such as "64KiB"."""
    match = re.fullmatch(r"(\d+)([KMG]iB|B|)", text.strip())
    if not match or int(match[1]) == 0:
        raise errors.InvalidArgumentError(f"a size reads like 64KiB or 1MiB, not {text!r}.")
    return int(match[1]) * _UNITS[match[2]]


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Gives a function that shows one line on the terminal, replacing the last."""
    if not sys.stderr.isatty():
        yield lambda line: print(line, file=sys.stderr, flush=True)
        return
    clear = "\r\x1b[2K"
    try:
        yield lambda line: print(f"{clear}{line}", end="", file=sys.stderr, flush=True)
    finally:
        print(clear, end="", file=sys.stderr, flush=True)

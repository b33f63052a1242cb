"""Text of commands: tables for terminals and Markdown, sizes, lists of names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jaxccomp import errors

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def lines(rows: Sequence[Sequence[str]], align: str = "", width: int | None = None) -> list[str]:
    """A line of text for each row; each column is as wide as its longest cell.

    Args:
      rows: cells; a row may have fewer cells than others.
      align: a letter for each column, ``<`` to the left (the default) or ``>`` to the right.
      width: the maximum length of a line: the middle of the longest cells is then left out.

    Example:
      >>> lines([("codec", "ratio"), ("lossless", "1.2")], "<>")
      ['codec     ratio', 'lossless    1.2']
    """
    count = max(map(len, rows), default=0)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(count)]
    if width is not None:
        while sum(widths) + len(_GAP) * (count - 1) > width and max(widths) > _MIN_COLUMN:
            widths[widths.index(max(widths))] -= 1
        rows = [[_cut(cell, widths[i]) for i, cell in enumerate(row)] for row in rows]
    fill = [str.rjust if how == ">" else str.ljust for how in align.ljust(count)]
    return [
        _GAP.join(fill[i](cell, widths[i]) for i, cell in enumerate(row)).rstrip() for row in rows
    ]


_GAP = "  "
_MIN_COLUMN = 5


def _cut(cell: str, width: int) -> str:
    """Return a cell of at most ``width`` characters, with dots for its middle."""
    if len(cell) <= width:
        return cell
    left = (width - 3) // 2
    return f"{cell[:left]}...{cell[len(cell) - (width - 3 - left) :]}"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    r"""A table in Markdown; ``align`` as in `lines`.

    Example:
      >>> print(markdown(("codec", "ratio"), [("bf16|lossless", "2.5")], "<>"))
      | codec | ratio |
      |---|---:|
      | bf16\|lossless | 2.5 |
    """
    rule = "".join("---:|" if how == ">" else "---|" for how in align.ljust(len(heads)))
    # Escape the bars of codec specs.
    made = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(heads)} |", f"|{rule}", *made])


def format_size(count: int) -> str:
    """``count`` in binary units, such as "1.5 MiB"."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if size.is_integer() else f"{size:.1f} {units[0]}"


def parse_size(text: str) -> int:
    """The bytes of a size such as "64KiB"."""
    match = re.fullmatch(r"(\d+)([KMG]iB|B|)", text.strip())
    if not match or int(match[1]) == 0:
        raise errors.InvalidArgumentError(f"a size reads like 64KiB or 1MiB, not {text!r}.")
    return int(match[1]) * _UNITS[match[2]]


def specs(text: str) -> list[str]:
    """The codec specs in a text; commas or spaces separate them.

    A part such as ``key=value`` continues the spec before it.

    Example:
      >>> specs("raw,int4:block=64,rounding=stochastic,bf16|lossless")
      ['raw', 'int4:block=64,rounding=stochastic', 'bf16|lossless']
    """
    found: list[str] = []
    for part in re.split(r"[,\s]+", text.strip()):
        if found and ":" in found[-1] and re.match(r"[a-z_]+=", part):
            found[-1] += f",{part}"
        elif part:
            found.append(part)
    return found


def names(text: str, kind: str, valid: Iterable[str]) -> tuple[str, ...]:
    """The names in a text such as "bcast,allreduce"; raises for an invalid one."""
    given = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in given:
        if name not in valid:
            raise errors.unknown(kind, name, valid)
    return given

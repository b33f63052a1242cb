"""Text tables for terminals and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def lines(rows: Sequence[Sequence[str]], align: str = "") -> list[str]:
    """A line of text for each row; each column is as wide as its longest cell.

    Args:
      rows: cells; a row may have fewer cells than others.
      align: a letter for each column, ``<`` to the left (the default) or ``>`` to the right.

    Example:
      >>> lines([("codec", "ratio"), ("lossless", "1.2")], "<>")
      ['codec     ratio', 'lossless    1.2']
    """
    count = max(map(len, rows), default=0)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(count)]
    fill = [str.rjust if how == ">" else str.ljust for how in align.ljust(count)]
    return [
        "  ".join(fill[i](cell, widths[i]) for i, cell in enumerate(row)).rstrip() for row in rows
    ]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    r"""The same in Markdown.

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

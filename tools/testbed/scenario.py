"""What the command lines of scenarios share: how they begin and end, and the files of results."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._native import json_files, tables
from jaxccomp.bench import machine
from testbed import __main__ as command_line
from testbed import workers

Line = dict[str, Any]


def run(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], list[Line] | None],
    *,
    table: Callable[[list[Line]], str] | None = None,
    plot: Callable[[list[Line], str], None] | None = None,
    worker: str = "",
    work: Callable[[argparse.Namespace], None] | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """The command line of a scenario, which has ``--json FILE``, and ``--table FILE`` with a table.

    Args:
      parser: with the scenario's own options.
      measure: what it does; what it returns is written to ``--json``, after a line on the machine.
        None: it has written that itself.
      table: makes a Markdown table of such lines.
      plot: draws them into a file, for ``--plot FILE`` beside ``--table``.
      worker: an option that its ranks are started with, and nobody else gives.
      work: what those do.
      arguments: default: the process's.

    Returns:
      The exit status: 1 when a launch failed or a line has an "error", 2 when there is something to
      correct, 130 when interrupted.
    """
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write what is measured")
    if table:
        parser.add_argument("--table", metavar="FILE", help="measure nothing; print such a file")
    if plot:
        parser.add_argument("--plot", metavar="FILE", help="with --table: draw it, too")
    given = parser.parse_args(arguments)
    if work and getattr(given, worker) is not None:
        work(given)
        return 0
    command_line.exit_on_signals()
    try:
        if table and given.table:
            lines = read(given.table)
            print(table(lines).rstrip("\n"))
            if plot and given.plot:
                plot(lines, given.plot)
            return 0
        rows = measure(given)
        if given.json and rows is not None:
            write(given.json, rows)
    except (errors.JaxccompError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except workers.FailedError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return int(any("error" in row for row in rows or ()))


def read(path: str | pathlib.Path) -> list[Line]:
    """The lines of a file of results.

    Raises:
      InvalidArgumentError: for a file that is none, or cannot be read.
    """
    return json_files.lines(path)


def write(path: pathlib.Path, rows: Iterable[Line]) -> None:
    """Writes what was measured, after a line on the machine."""
    lines = [{"facts": machine.facts()}, *rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def say(text: str) -> None:
    """Says what goes on."""
    print(text, file=sys.stderr, flush=True)


def options(given: argparse.Namespace, *names: str) -> list[str]:
    """Options of a scenario as its ranks are given them."""
    return [text for name in names for text in (f"--{name}", str(getattr(given, name)))]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A table, whose first columns, ``texts`` of them, are aligned to the left."""
    return tables.markdown(heads, rows, "<" * texts + ">" * (len(heads) - texts))


def rounded(x: float) -> float:
    """With four digits, as results have them."""
    return float(f"{x:.4g}")

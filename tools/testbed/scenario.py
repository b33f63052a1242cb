"""Common parts of the scenarios' command lines: options, exit status, files of results."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._native import json_files, terminal
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
    """Runs the command line of a scenario; adds ``--json FILE``, and with ``table`` ``--table``.

    Args:
      parser: a parser with the scenario's own options.
      measure: runs the scenario and returns its lines, which are written to ``--json`` after a line
        of facts about the machine; None if it has written the file itself.
      table: makes a Markdown table of the lines.
      plot: draws the lines into a file, for ``--plot FILE`` with ``--table``.
      worker: an option that is given only to the scenario's ranks.
      work: the function that those ranks run.
      arguments: the command line; default: the process's.

    Returns:
      The exit status: 1 when a launch failed or a line has an "error", 2 for invalid arguments or
      files, 130 when interrupted.
    """
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the measurements")
    if table:
        parser.add_argument("--table", metavar="FILE", help="measure nothing; print this file")
    if plot:
        parser.add_argument("--plot", metavar="FILE", help="with --table: also draw its lines")
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
    """The lines of a results file.

    Raises:
      InvalidArgumentError: for another kind of file, or one that cannot be read.
    """
    return json_files.lines(path)


def write(path: pathlib.Path, rows: Iterable[Line]) -> None:
    """Writes a line of facts about the machine, then ``rows``."""
    lines = [{"facts": machine.facts()}, *rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def say(text: str) -> None:
    """Prints progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def options(given: argparse.Namespace, *names: str) -> list[str]:
    """The named options as command-line arguments for the scenario's ranks."""
    return [text for name in names for text in (f"--{name}", str(getattr(given, name)))]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table whose first ``texts`` columns are aligned to the left."""
    return terminal.markdown(heads, rows, "<" * texts + ">" * (len(heads) - texts))


def rounded(x: float) -> float:
    """Round to four significant digits."""
    return float(f"{x:.4g}")

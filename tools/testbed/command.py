"""The command line of a comparison that starts workers of its own, and writes lines of JSON."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

Lines = list[dict[str, Any]]


def parser(about: str, workers: Iterable[str]) -> argparse.ArgumentParser:
    """What all of them take.

    Args:
      about: the module's docstring.
      workers: what a comparison may start itself as, by ``--worker``.
    """
    made = argparse.ArgumentParser(description=about.partition("\n")[0])
    made.add_argument("--json", type=pathlib.Path)
    made.add_argument("--table", metavar="FILE", help="measure nothing; print such a file")
    made.add_argument("--worker", choices=workers, help=argparse.SUPPRESS)
    return made


def run(
    given: argparse.Namespace,
    *,
    markdown: Callable[[Lines], str],
    work: Callable[[argparse.Namespace], int],
    compare: Callable[[argparse.Namespace], int],
) -> int:
    """Prints a table, is a worker, or compares."""
    if given.table:
        with open(given.table, encoding="utf-8") as file:
            print(markdown([json.loads(line) for line in file]), end="")
        return 0
    return work(given) if given.worker else compare(given)


def write(rows: Lines, given: argparse.Namespace) -> None:
    """Writes what was measured, and on what machine, where a file is named."""
    from jaxccomp.bench import machine

    if given.json:
        lines = [{"facts": machine.facts()}, *rows]
        given.json.write_text("".join(json.dumps(line) + "\n" for line in lines))

"""Merges the traces of all ranks into one (docs/observing.md)."""

from __future__ import annotations

import argparse

from jaxccomp import trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    summary = "Writes the traces of all ranks as one, for ui.perfetto.dev, on one clock."
    merge = what.add_parser("merge", help=summary, description=summary)
    merge.add_argument("output", metavar="OUT", help="the file to write, which must not be there")
    merge.add_argument("traces", metavar="IN", nargs="+", help="as Timeline.save has written it")


def run(arguments: argparse.Namespace) -> int:
    """Merges, and prints the clock offsets with their uncertainty."""
    print(trace.merge(arguments.output, *arguments.traces))
    return 0

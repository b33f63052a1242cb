"""Shows what differs between two files of plans (docs/planner.md)."""

from __future__ import annotations

import argparse

from jaxccomp.schedules import _plans


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    summary = "Prints a line for each call that one file lacks (-, +), or plans differently (!)."
    diff = what.add_parser("diff", help=summary, description=summary)
    diff.add_argument("before", metavar="A", help="as jaxccomp.plan has saved it")
    diff.add_argument("after", metavar="B", help="the same")


def run(arguments: argparse.Namespace) -> int:
    """Prints the differences; returns 0 if there are none, else 1."""
    found = _plans.diff(*map(_plans.load, (arguments.before, arguments.after)))
    if found:
        print(found)
    return int(bool(found))

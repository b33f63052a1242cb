"""Reads the command line and calls the command that it names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp.cli import bench, doctor, offline, run, tune
from jaxccomp.launch import signals

# Modules, and classes for commands of a few lines: docstring, add_arguments() and run().
_COMMANDS: dict[str, Any] = {
    "doctor": doctor,
    "bench": bench,
    "run": run,
    "schedule": offline.Schedule,
    "simulate": offline.Simulate,
    "plan": offline.Plan,
    "tune": tune,
    "trace": offline.Trace,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Returns:
      The exit status.
    """
    signals.raise_keyboard_interrupt()
    parser = argparse.ArgumentParser(prog="python -m jaxccomp", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        summary = module.__doc__.splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
    given = sys.argv[1:] if arguments is None else arguments
    if "info" in given[:1]:
        parser.error("there is no command 'info': use 'doctor', which replaces it")
    parsed = parser.parse_args(given)
    try:
        return _COMMANDS[parsed.command].run(parsed)
    except errors.JaxccompError as error:
        print(f"{parser.prog} {parsed.command}: {error}", file=sys.stderr)
        return 2

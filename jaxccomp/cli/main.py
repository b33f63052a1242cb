"""Reads the command line and calls the command that it names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from jaxccomp import errors
from jaxccomp._native.version import __version__
from jaxccomp.launch import signals

_PROG = "python -m jaxccomp"
# Modules of this folder, and classes for commands of a few lines: docstring, add_arguments() and
# run(). Only the one that is called is imported: `run` starts without JAX.
_COMMANDS = {
    "doctor": "doctor",
    "bench": "bench",
    "run": "run",
    "schedule": "offline.Schedule",
    "simulate": "offline.Simulate",
    "plan": "offline.Plan",
    "tune": "tune",
    "trace": "offline.Trace",
    "flight": "offline.Flight",
}


def _loaded(name: str) -> Any:
    module, _, attribute = _COMMANDS[name].partition(".")
    command = import_module(f"jaxccomp.cli.{module}")
    return getattr(command, attribute) if attribute else command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Returns:
      The exit status.
    """
    given = sys.argv[1:] if arguments is None else arguments
    called = [name for name in given[:1] if name in _COMMANDS]
    modules = {name: _loaded(name) for name in called or _COMMANDS}
    signals.raise_keyboard_interrupt()
    parser = argparse.ArgumentParser(prog=_PROG, description=__doc__)
    parser.add_argument("--version", action="version", version=f"jaxccomp {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in modules.items():
        summary = module.__doc__.splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
    if "info" in given[:1]:
        parser.error("there is no command 'info': use 'doctor', which replaces it")
    parsed = parser.parse_args(given)
    try:
        return modules[parsed.command].run(parsed)
    except errors.JaxccompError as error:
        print(f"{parser.prog} {parsed.command}: {error}", file=sys.stderr)
        return 2

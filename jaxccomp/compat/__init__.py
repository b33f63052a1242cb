"""Interfaces of other libraries on jaxccomp, for programs that were written for them.

* :mod:`jaxccomp.compat.mpi4jax`: the functions of mpi4jax 0.9.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

_USAGE = """\
usage: python -m jaxccomp.compat.{name} SCRIPT [ARGUMENT ...]
       python -m jaxccomp.compat.{name} -m MODULE [ARGUMENT ...]

Runs a program as `python SCRIPT` or `python -m MODULE` does; in it, and in the Python processes
that it starts, `import {name}` finds jaxccomp.compat.{name}. Start ranks as before, for instance
`mpiexec -n 2 python -m jaxccomp.compat.{name} SCRIPT`."""


def run_as(name: str, arguments: Sequence[str]) -> None:
    """Run a program for which ``import name`` finds the module ``name`` of this folder.

    JAX is not imported before the program, so the program may still set JAX's environment.

    Args:
      name: the name of the other library.
      arguments: the command line: a script and its arguments, or ``-m``, a module and its
        arguments.

    Raises:
      SystemExit: when the command line names no program (status 2), or for ``--help``.
    """
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        is_help = bool(arguments) and arguments != ["-m"]
        print(_USAGE.format(name=name), file=sys.stdout if is_help else sys.stderr)
        raise SystemExit(0 if is_help else 2)
    if arguments[0].startswith("-") and arguments[0] != "-m":
        message = f"unknown option {arguments[0]!r}; the only option is -m MODULE\n"
        print(message + _USAGE.format(name=name), file=sys.stderr)
        raise SystemExit(2)
    is_module = arguments[0] == "-m"
    program, *others = arguments[1:] if is_module else arguments
    sys.argv = [program, *others]
    if not sys.flags.safe_path:
        folder = os.getcwd() if is_module else os.path.dirname(os.path.realpath(program))
        sys.path[0] = folder
    # This folder contains modules of the other libraries' names, and no others that are public.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = here + (os.pathsep + inherited if inherited else "")
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")

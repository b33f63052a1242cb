"""Starts the ranks of a comparison and collects their reports: a line of JSON each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.bed import Testbed

# The kinds of tasks in a timeline in which a rank computes.
CODING = ("encode", "decode", "merge", "copy", "residual")
_MARK = "testbed: "
_TOOLS = str(pathlib.Path(__file__).parents[1])


class FailedError(Exception):
    """A rank failed or did not report; with the output of the launch."""


@dataclasses.dataclass(frozen=True)
class Found:
    """Results of a launch.

    Attributes:
      said: the report of each rank, in any order.
      received_bytes: bytes that all hosts received over their links; 0 without links.
    """

    said: list[dict[str, Any]]
    received_bytes: int = 0


def run(
    program: Sequence[str],
    where: Testbed | int,
    *,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float,
) -> Found:
    """Runs a script whose ranks call `say`, and waits for it.

    Args:
      program: the script and its arguments.
      where: a testbed (one rank per host), or a number of ranks on this machine.
      python: the interpreter, which also determines the MPI.
      env: added to this process's environment and a PYTHONPATH that starts with ``tools``.
      timeout_seconds: time after which to kill the ranks.

    Raises:
      FailedError: the launch failed, took too long, or a rank did not report.
    """
    how = {"python": python, "env": env, "timeout_seconds": timeout_seconds}
    received = 0
    if isinstance(where, int):
        ranks = where
        output = output_of(program, where, **how)
    else:
        ranks = len(where.plan.hosts)
        before = where.received_bytes()
        output = output_of(program, where, **how)
        received = where.received_bytes() - before
    found = said(output, ranks)
    if found is None:
        raise FailedError(f"not all of {ranks} ranks reported: {output}")
    return Found(found, received)


def output_of(
    program: Sequence[str],
    where: Testbed | int,
    *,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float,
) -> str:
    """The output of a program's ranks; arguments and errors as in `run`."""
    env = {"PYTHONPATH": python_path()} | dict(env or {})
    if isinstance(where, int):
        from jaxccomp.bench import launch  # workers of other packages need not have jaxccomp

        done = launch.run(where, program, python=python, env=env, timeout_seconds=timeout_seconds)
        output, error = done.output, done.error
    else:
        ended = where.run(
            [python, *program],
            python=python,
            env=env,
            timeout_seconds=timeout_seconds,
            capture=True,
        )
        output = ended.stdout
        error = f"exit status {ended.returncode}" if ended.returncode else ""
    if error:
        raise FailedError(f"{error}: {output}")
    return output


def python_path() -> str:
    """PYTHONPATH of a worker: ``tools``, then this process's PYTHONPATH."""
    return os.pathsep.join(filter(None, [_TOOLS, os.environ.get("PYTHONPATH")]))


def join_distributed() -> None:
    """Initialises `jax.distributed` on MPI ranks; call before using JAX."""
    import socket

    import jax
    from mpi4py import MPI

    from jaxccomp.launch.processes import reserved_port

    world = MPI.COMM_WORLD
    with reserved_port("") as port:
        place = f"{socket.gethostbyname(socket.gethostname())}:{port}"
        jax.distributed.initialize(world.bcast(place), world.size, world.rank)


def barrier(comm: Any, pause_seconds: float = 0.0005) -> None:
    """A barrier of MPI that sleeps: a rank that polls would keep a core busy that others need."""
    ready = comm.Ibarrier()
    while not ready.Test():
        time.sleep(pause_seconds)


def say(found: dict[str, Any]) -> None:
    """Prints a report that `said` finds in the output of all ranks."""
    sys.stdout.write(f"{_MARK}{json.dumps(found)}\n")
    sys.stdout.flush()


def said(text: str, ranks: int) -> list[dict[str, Any]] | None:
    """The report of each rank, in any order; None unless all reported."""
    found = lines(text)
    return found if len(found) == ranks else None


def lines(text: str) -> list[dict[str, Any]]:
    """All complete reports in ``text``, in order."""
    decoder, found = json.JSONDecoder(), []
    for part in text.split(_MARK)[1:]:  # mpiexec may join lines of several ranks
        with contextlib.suppress(json.JSONDecodeError):
            found.append(decoder.raw_decode(part)[0])
    return found

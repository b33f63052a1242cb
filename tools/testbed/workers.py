"""Starts the ranks of a comparison and collects what they say: a line of JSON each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.bed import Testbed

_MARK = "testbed: "
_TOOLS = str(pathlib.Path(__file__).parents[1])


class FailedError(Exception):
    """A launch in which not all ranks came to their end and said something; with its output."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What a launch brought.

    Attributes:
      said: of each rank, in any order.
      received_bytes: what all hosts received over their links meanwhile; 0 without links.
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
    """Runs a script whose ranks `say` something, and waits for it.

    Args:
      program: the script and its arguments.
      where: a testbed, with one rank on each of its hosts; or the number of ranks, without links.
      python: the interpreter, which also names the MPI.
      env: added to this process's environment, in which ranks find the modules of ``tools`` first.
      timeout_seconds: when to end it.

    Raises:
      FailedError: when the launch failed, took too long, or a rank said nothing.
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
        raise FailedError(f"not all of {ranks} ranks said something: {output}")
    return Found(found, received)


def output_of(
    program: Sequence[str],
    where: Testbed | int,
    *,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float,
) -> str:
    """What the ranks of a program print; arguments and errors are those of `run`."""
    env = {"PYTHONPATH": python_path()} | dict(env or {})
    if isinstance(where, int):
        from jaxccomp.bench import launch  # which a worker of another system need not have

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
    """PYTHONPATH of a worker: ``tools``, and then what this process has."""
    return os.pathsep.join(filter(None, [_TOOLS, os.environ.get("PYTHONPATH")]))


def join_distributed() -> None:
    """Has ranks that MPI has started meet by `jax.distributed`, too; called before JAX is used."""
    import socket

    import jax
    from mpi4py import MPI

    from jaxccomp.launch import ports

    world = MPI.COMM_WORLD
    with ports.reserved("") as port:
        place = f"{socket.gethostbyname(socket.gethostname())}:{port}"
        jax.distributed.initialize(world.bcast(place), world.size, world.rank)


def say(found: dict[str, Any]) -> None:
    """Prints a line that `said` finds among what others print."""
    sys.stdout.write(f"{_MARK}{json.dumps(found)}\n")
    sys.stdout.flush()


def said(text: str, ranks: int) -> list[dict[str, Any]] | None:
    """What each rank said, in any order; None unless all did."""
    found = lines(text)
    return found if len(found) == ranks else None


def lines(text: str) -> list[dict[str, Any]]:
    """All that was said, in its order; what was not ended is left out."""
    decoder, found = json.JSONDecoder(), []
    for part in text.split(_MARK)[1:]:  # lines of several ranks may have become one
        with contextlib.suppress(json.JSONDecodeError):
            found.append(decoder.raw_decode(part)[0])
    return found

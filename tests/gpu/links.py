"""Runs ranks that share this machine's GPU on a testbed with slow links."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import process
import ranks
import sources

# The testbed imports jaxccomp: first make it the package of this tree (sources.py).
errors = sources.module("errors")
sys.path.append(str(sources.ROOT / "tools"))

from testbed import bed, launchers, plan  # noqa: E402

SLACK_SECONDS = 2.0  # to create and remove a testbed


def rate(link: str) -> int:
    """Bits per second of a link such as "1gbit".

    Raises:
      JaxccompError: for an invalid link.
    """
    return plan.parse_rate(link)


@functools.cache
def why_not() -> str:
    """Why this machine cannot run a testbed; empty if it can. Creates one to try."""
    try:
        launchers.find(None, sys.executable)
        with bed.Testbed(2, "1gbit"):
            return ""
    except (errors.JaxccompError, OSError) as error:
        return str(error)


@contextlib.contextmanager
def testbed(hosts: int, link: str) -> Iterator[Any]:
    """A testbed of ``hosts`` hosts, each with a link of that rate."""
    with bed.Testbed(hosts, link) as made:
        yield made


def run(
    made: Any, program: Sequence[str], env: Mapping[str, str], name: str, seconds: float
) -> tuple[list[dict], int]:
    """Runs a program with one rank per host; returns its lines, and 1 after a failure."""
    clock = process.Clock(seconds)
    done = made.run(
        program,
        env=dict(env) | SHARED_GPU,
        timeout_seconds=max(clock.left - SLACK_SECONDS, 1.0),
        capture=True,
    )
    found = list(ranks.rows(done.stdout))
    if not done.returncode:
        return found, 0
    late = done.returncode == bed.TIMED_OUT
    what = "ended, as its time was up" if late else f"exit status {done.returncode}"
    lines = [line for line in done.stdout.splitlines() if not line.startswith("{")]
    said = "\n".join(lines)[-1500:]
    return [*found, {"wrong": name, "reason": f"{what}: {said}"}], 1


# Hosts of a testbed share the GPU, so that none may preallocate its memory.
SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

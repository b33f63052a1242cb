"""Slow links between ranks that share this machine's GPU: the testbed, or why there is none."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import process
import ranks
import sources

# The testbed imports the package: as gpu-check finds it (sources.py).
errors = sources.module("errors")
sys.path.append(str(sources.ROOT / "tools"))

from testbed import bed, launchers, plan  # noqa: E402

SLACK_SECONDS = 2.0  # to make and to remove it


def rate(link: str) -> int:
    """Bits per second of a link such as "1gbit".

    Raises:
      JaxccompError: for what is none.
    """
    return plan.parse_rate(link)


@functools.cache
def why_not() -> str:
    """Why there can be no slow links here; empty when there can. One is tried."""
    try:
        launchers.find(None, sys.executable)
        with bed.Testbed(2, "1gbit"):
            return ""
    except (errors.JaxccompError, OSError) as error:
        return str(error)


@contextlib.contextmanager
def testbed(hosts: int, link: str) -> Iterator[Any]:
    """As many hosts, each with a link of that rate."""
    with bed.Testbed(hosts, link) as made:
        yield made


def run(
    made: Any, program: Sequence[str], env: Mapping[str, str], name: str, seconds: float
) -> tuple[list[dict], int]:
    """Runs a program, one rank on each host: its lines, and 1 where something was wrong."""
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


# Hosts of a testbed are strangers to each other, but for the GPU.
SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

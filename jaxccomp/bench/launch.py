"""Runs programs on several ranks of this machine's CPU, for benchmarks and tests."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from jaxccomp.launch.mpiexec import allow_root, command, mpiexec, vendor

__all__ = ["Outcome", "command", "environment", "mpiexec", "run", "vendor"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a job; ``error`` is empty if all ranks exited with status 0."""

    output: str
    error: str = ""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, adjusted for starting ranks."""
    return dict(os.environ, JAX_PLATFORMS="cpu") | allow_root() | dict(extra or {})


def run(
    ranks: int,
    program: Sequence[str],
    *,
    python: str = sys.executable,
    bind: str = "none",
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 120.0,
) -> Outcome:
    """Runs a program on several ranks and waits.

    At the deadline, or on an interrupt, all ranks are ended.
    """
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
        return Outcome(_ended(process), f"not done after {timeout_seconds:g} s")
    except BaseException:  # an interrupt, for instance
        _ended(process)
        raise
    if process.returncode:
        return Outcome(output, f"exit status {process.returncode}")
    return Outcome(output)


def _ended(process: subprocess.Popen[str]) -> str:
    """Ends a launcher and its ranks; returns their output."""
    # On SIGTERM the launcher ends its ranks; SIGKILL only if it does not exit.
    os.killpg(process.pid, signal.SIGTERM)
    try:
        output, _ = process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return output

"""Starts processes of a group that shrinks and grows, without MPI or jax.distributed."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import patience
from ucx import processes

FOLDER = pathlib.Path(__file__).parent
SECRET = "a secret of the tests"


class Member:
    """A process; stores its output lines."""

    def __init__(self, worker: str, case: str, env: Mapping[str, str]):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI_COMM"))}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(FOLDER / worker), case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean | {"JAX_PLATFORMS": "cpu", "JAXCCOMP_SECRET": SECRET} | dict(env),
        )
        self.lines: list[str] = []
        self._came = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._came:
                self.lines.append(line.rstrip())
                self._came.notify_all()

    def word(self, first: str, seconds: float = 60) -> str:
        """Wait for a line that begins with ``first``; return its rest."""

        def found() -> list[str]:
            return [line for line in self.lines if line.startswith(first + " ")]

        with self._came:
            assert self._came.wait_for(found, patience.seconds(seconds)), "\n".join(self.lines)
            return found()[0].removeprefix(first + " ")

    def go_on(self) -> None:
        """Send the line that the process waits for."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = 90) -> Any:
        """Wait for a successful exit; return the last printed object."""
        try:
            self.process.wait(patience.seconds(seconds))
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("it has not ended\n" + "\n".join(self.lines)) from None
        assert self.process.returncode == 0, "\n".join(self.lines)
        return processes.answer("\n".join(self.lines))


def start(
    case: str, size: int, *, worker: str = "elastic_worker.py", **options: str
) -> list[Member]:
    """Start the initial members; ``options`` are jaxccomp's."""
    env = {f"JAXCCOMP_{name.upper()}": value for name, value in options.items()}
    env |= {"JAXCCOMP_COORDINATOR": f"127.0.0.1:{processes.free_port()}"}
    env |= {"JAXCCOMP_SIZE": str(size)}
    return [Member(worker, case, env | {"JAXCCOMP_RANK": str(rank)}) for rank in range(size)]


def join(case: str, at: str, group: str = "world", **options: str) -> Member:
    """Start a process that asks at address ``at`` to join."""
    env = {f"JAXCCOMP_{name.upper()}": value for name, value in options.items()}
    return Member(
        "elastic_worker.py", case, env | {"JAXCCOMP_COORDINATOR": at, "JAXCCOMP_JOIN": group}
    )


def stop(members: list[Member]) -> None:
    """Kill the remaining processes."""
    for member in members:
        member.process.kill()
        member.process.wait()

"""Runs a command with a time limit, and kills all processes that it leaves behind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

import sources

leftovers = sources.module("launch.leftovers")
mps = sources.module("launch.mps")

_GRACE_SECONDS = 8.0  # for a launcher to end its ranks, and a testbed to remove its links
_MPS = "nvidia-cuda-mps"


@dataclasses.dataclass(frozen=True)
class Done:
    """The result of a command.

    Attributes:
      output: its stdout, also if it was killed.
      said: its stderr.
      status: its exit status.
      late: whether it was ended at its time limit.
      left: names of the processes that it left behind, which were killed.
    """

    output: str
    said: str
    status: int
    late: bool = False
    left: tuple[str, ...] = ()

    @property
    def wrong(self) -> str:
        """Why the command failed; empty if it did not."""
        if self.late:
            return f"ended, as its time was up: {self.said.strip()[-1500:]}"
        if self.status:
            return f"exit status {self.status}: {self.said.strip()[-1500:]}"
        return f"it left running {', '.join(self.left)}" if self.left else ""


def run(
    command: Sequence[str],
    env: Mapping[str, str] = os.environ,
    seconds: float = 60.0,
    name: str = "JAXCCOMP_GPU_RUN",
    each: Callable[[str], None] = lambda line: None,
) -> Done:
    """Runs a command; at its end, for any reason, kills all processes that it has started.

    Args:
      command: the command line.
      env: its environment.
      seconds: time limit: then it gets SIGTERM, and after _GRACE_SECONDS SIGKILL.
      name: the environment variable that marks its processes; nested commands need different ones.
      each: called with each line of output as it arrives, in another thread.
    """
    mark = f"{name}={uuid.uuid4().hex}"
    job = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(env) | dict([mark.split("=")]),
        start_new_session=True,
    )
    late = False
    output: list[str] = []
    said: list[str] = []

    def put(line: str) -> None:
        output.append(line)
        each(line)

    readers = [
        threading.Thread(target=_read, args=(job.stdout, put)),
        threading.Thread(target=_read, args=(job.stderr, said.append)),
    ]
    for reader in readers:
        reader.start()
    try:
        if not _joined(readers, max(seconds, 0.1)):
            late = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGTERM)
            if not _joined(readers, _GRACE_SECONDS):
                end(mark)
                _joined(readers, None)
    finally:
        # A launcher may end a moment before its last rank.
        leftovers.wait(lambda: not leftovers.marked(mark), 0.0 if late else 2.0)
        left = end(mark)
        job.wait()
    return Done("".join(output), "".join(said), job.returncode, late, () if late else left)


def _read(pipe: TextIO, put: Callable[[str], None]) -> None:
    for line in pipe:
        put(line)


def _joined(readers: Sequence[threading.Thread], seconds: float | None) -> bool:
    """Whether all pipes were closed within ``seconds``."""
    end = None if seconds is None else time.monotonic() + seconds
    for reader in readers:
        reader.join(None if end is None else max(end - time.monotonic(), 0))
    return not any(reader.is_alive() for reader in readers)


def end(mark: str) -> tuple[str, ...]:
    """Kills all processes with ``mark``, and returns their names.

    An MPS daemon is asked to quit after its clients have ended: killed while it has clients, it may
    leave the GPU unusable.
    """
    found = {pid: _name(pid) for pid in leftovers.marked(mark)}
    clients = [pid for pid, name in found.items() if not name.startswith(_MPS)]
    for pid in clients:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    leftovers.wait(lambda: not set(clients) & set(leftovers.marked(mark)), 5.0)
    for pipes in {_variable(pid, mps.PIPES) for pid in leftovers.marked(mark)} - {""}:
        mps.quit(pipes)
    leftovers.wait(lambda: not leftovers.marked(mark), 5.0 if len(clients) < len(found) else 0.0)
    leftovers.kill(mark)
    return tuple(sorted(set(found.values())))


def _name(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def _variable(pid: int, name: str) -> str:
    """An environment variable of a process; empty if it is not set, or the process has ended."""
    try:
        rows = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    begin = f"{name}=".encode()
    return next((os.fsdecode(row[len(begin) :]) for row in rows if row.startswith(begin)), "")


def end_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise, so that processes of running commands are killed."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


class Clock:
    """The used and the remaining part of a time limit."""

    def __init__(self, seconds: float):
        self.seconds, self._start = seconds, time.monotonic()

    @property
    def used(self) -> float:
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        return self.seconds - self.used


def python(script: str, *arguments: object) -> list[str]:
    """The command line of a script in this folder."""
    path = pathlib.Path(__file__).with_name(script)
    return [sys.executable, str(path), *map(str, arguments)]

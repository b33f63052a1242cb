"""Processes of this machine that carry a mark in their environment, wherever they have gone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable


def marked(mark: str) -> list[int]:
    """Processes that were started with ``mark``, which reads ``NAME=value``, but for this one."""
    wanted = mark.encode()
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        # Gone meanwhile, or another user's.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if pid != os.getpid() and wanted in file.read().split(b"\0"):
                found.append(pid)
    return found


def kill(mark: str, seconds: float = 5.0) -> None:
    """Kills what is `marked`, and what that has started meanwhile."""
    deadline = time.monotonic() + seconds
    while (pids := marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def wait(done: Callable[[], bool], seconds: float, pause: float = 0.05) -> bool:
    """Whether ``done`` became true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True

"""Deadlines of tests that hold on a busy machine.

Tests state how long something takes at most on a quiet machine. `slowdown` says how much longer it
may take now. `seconds` is a deadline for others to keep (a subprocess, an option of this package).
`Stopwatch` and `wait_for` measure quiet seconds themselves: time divided by the slowdown, without
the time in which the machine stood still.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_TICK_SECONDS = 0.02
_CPUS = len(os.sched_getaffinity(0))


def _slowdown_of_a_loop() -> float:
    """How many times longer than its processor time a short busy loop takes."""
    begun, cpu_begun = time.monotonic(), time.process_time()
    while time.process_time() - cpu_begun < 0.02:
        pass
    return (time.monotonic() - begun) / (time.process_time() - cpu_begun)


_AT_START = _slowdown_of_a_loop()


def slowdown() -> float:
    """How many times longer than on a quiet machine a process takes here and now; at least 1.

    The largest of three: what a busy loop measured when this was imported, the number of threads
    for each processor that are ready to run now, and its average of the last minute.
    """
    with open("/proc/loadavg", encoding="ascii") as file:
        average, _, _, running, *_ = file.read().split()
    ready = max(float(average), float(running.partition("/")[0]))
    return max(1.0, _AT_START, ready / _CPUS)


def seconds(quiet: float) -> float:
    """A deadline for what takes at most ``quiet`` seconds on a quiet machine.

    Twice the time that the present load suggests, as the load may rise.
    """
    return 2 * quiet * slowdown()


class _Clock:
    """Counts quiet seconds by ticks. A late tick counts as two at most."""

    def __init__(self) -> None:
        self.now = 0.0
        self._before = time.monotonic()

    def tick(self) -> None:
        time.sleep(_TICK_SECONDS)
        now = time.monotonic()
        self.now += min(now - self._before, 2 * _TICK_SECONDS) / slowdown()
        self._before = now

    def run(self) -> None:
        while True:
            self.tick()


_threads: list[_Clock] = []


class Stopwatch:
    """Quiet seconds since it was made, which a thread counts.

    Not for ranks: in a process with several threads the engine cannot tell that ranks wait for each
    other. An error there says whether it came at a deadline (`at_deadline`).
    """

    def __init__(self) -> None:
        if not _threads:
            _threads.append(_Clock())
            threading.Thread(target=_threads[0].run, daemon=True).start()
        self._begun = _threads[0].now

    def seconds(self) -> float:
        """Never more than the time that has really passed."""
        return _threads[0].now - self._begun


def wait_for(condition: Callable[[], object], quiet: float) -> bool:
    """Whether a condition comes to hold; gives up after so many quiet seconds."""
    clock = _Clock()
    while not condition():
        if clock.now > quiet:
            return False
        clock.tick()
    return True


def at_deadline(error: str) -> bool:
    """Whether an error of an operation came when its deadline had passed, and not at once."""
    return "no progress for" in error

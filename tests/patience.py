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

_TICK_SECONDS = 0.05
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

    Twice of what it takes now, as the load may rise meanwhile.
    """
    return 2 * quiet * slowdown()


class _Clock:
    """Counts quiet seconds by ticks of a thread. A late tick counts as two at most."""

    def __init__(self) -> None:
        self.now = 0.0
        threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(_TICK_SECONDS)
            now = time.monotonic()
            self.now += min(now - before, 2 * _TICK_SECONDS) / slowdown()
            before = now


_clocks: list[_Clock] = []


class Stopwatch:
    """Quiet seconds since it was made."""

    def __init__(self) -> None:
        if not _clocks:
            _clocks.append(_Clock())
        self._begun = _clocks[0].now

    def seconds(self) -> float:
        """Never more than what has really passed."""
        return _clocks[0].now - self._begun


def wait_for(condition: Callable[[], object], quiet: float) -> bool:
    """Whether a condition comes to hold; gives up after so many quiet seconds."""
    watch = Stopwatch()
    while not condition():
        if watch.seconds() > quiet:
            return False
        time.sleep(0.01)
    return True

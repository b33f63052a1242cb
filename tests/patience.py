"""Time limits of tests, scaled by the load of the machine.

Tests state a limit for a quiet machine. `slowdown` estimates how much slower the machine is now.
`seconds` scales a limit that a test passes on (to a subprocess, to an option of this package).
`Stopwatch` and `wait_for` measure quiet seconds: elapsed time divided by the slowdown, without
times in which the whole machine was paused.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_TICK_SECONDS = 0.02
_CPUS = len(os.sched_getaffinity(0))


def _slowdown_of_a_loop() -> float:
    """Returns elapsed time / processor time of a short busy loop."""
    begun, cpu_begun = time.monotonic(), time.process_time()
    while time.process_time() - cpu_begun < 0.02:
        pass
    return (time.monotonic() - begun) / (time.process_time() - cpu_begun)


_AT_START = _slowdown_of_a_loop()


def slowdown() -> float:
    """Returns the time of a process now / its time on a quiet machine; at least 1.

    The maximum of three: the slowdown of a busy loop at import, the runnable threads per processor
    now, and their average over the last minute.
    """
    with open("/proc/loadavg", encoding="ascii") as file:
        average, _, _, running, *_ = file.read().split()
    ready = max(float(average), float(running.partition("/")[0]))
    return max(1.0, _AT_START, ready / _CPUS)


def seconds(quiet: float) -> float:
    """Returns a limit for work that takes at most ``quiet`` seconds on a quiet machine.

    Twice the estimate for the present load, because the load may rise.
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
    """Counts quiet seconds since its construction, on a thread.

    Do not use it in ranks: in a process with several threads the engine detects no deadlocks. Tests
    of ranks use `at_deadline` instead.
    """

    def __init__(self) -> None:
        if not _threads:
            _threads.append(_Clock())
            threading.Thread(target=_threads[0].run, daemon=True).start()
        self._begun = _threads[0].now

    def seconds(self) -> float:
        """Returns the quiet seconds, at most the elapsed seconds."""
        return _threads[0].now - self._begun


def wait_for(condition: Callable[[], object], quiet: float) -> bool:
    """Waits for a condition; returns whether it holds within ``quiet`` quiet seconds."""
    clock = _Clock()
    while not condition():
        if clock.now > quiet:
            return False
        clock.tick()
    return True


def at_deadline(error: str) -> bool:
    """Returns whether an operation failed at its deadline, and not earlier."""
    return "no progress for" in error

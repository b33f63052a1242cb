"""The lines from ranks to the launcher: prefixed output, control messages, counters, throughput."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from jaxccomp import errors

_PREFIXED = re.compile(rb"\[(\d+)\] (.*)", re.DOTALL)
_TOLD = b"\x1ejaxccomp "  # a control character that programs do not begin lines with
_ABORTED = re.compile(r"Abort\(-?\d+\) on node (\d+)|MPI_ABORT was invoked on rank (\d+)")


def prefixed(rank: int, line: bytes) -> bytes:
    """Return a line of a rank's output with rank prefix and newline."""
    return b"[%d] %s%s" % (rank, line, b"" if line.endswith(b"\n") else b"\n")


def control(**values: Any) -> bytes:
    """Return a control message for the launcher, as a rank's program prints it."""
    return _TOLD + json.dumps(values).encode() + b"\n"


def told(rank: int, **values: Any) -> bytes:
    """Return a control message for the launcher, as the rank's supervisor prints it."""
    return prefixed(rank, control(**values))


# The values of control messages. A program may print such a line, too.
_CONTROL = {
    "pid": int,  # of the rank's supervisor, which gets signals
    "status": int,  # the exit status of the rank's program
    "trouble": str,  # why the rank or its host cannot run
    # The ends of a host's ssh connection, and a free port (host_agent.py).
    "server": str,
    "client": str,
    "port": int,
    "live": dict,  # the rank's `Counters`
}


def parse(line: bytes) -> tuple[int | None, bytes, dict[str, Any] | None]:
    """Return a line's rank (None: mpiexec's own), its text, and its control message or None."""
    match = _PREFIXED.fullmatch(line.lstrip(b"\0"))  # Open MPI ends its banners with zeros
    if not match:
        return None, line, None
    rank, text = int(match[1]), match[2]
    # The program's output before the message may lack a newline.
    before, found, value = text.partition(_TOLD)
    if found:
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(value)
            if _is_control(values):
                return rank, before, values
    return rank, text, None


def _is_control(values: object) -> bool:
    return (
        isinstance(values, dict)
        and bool(values)
        and all(type(value) is _CONTROL.get(name) for name, value in values.items())
        and values.get("pid", 2) > 1  # 0 and less are groups of processes
        and 0 <= values.get("status", 0) <= 255
        and len({"server", "client", "port"} & values.keys()) in (0, 3)
    )


def aborted(line: str) -> int | None:
    """Return the rank that called MPI_Abort, if this is MPI's line about it; else None."""
    match = _ABORTED.search(line)
    return int(match[1] or match[2]) if match else None


def exit_status(returncode: int) -> int:
    """Convert a `subprocess` return code to a shell's: 128 + the signal number."""
    return 128 - returncode if returncode < 0 else returncode


def described(status: int) -> str:
    """Describe the end of a process with this exit status.

    >>> described(3), described(139)
    ('ended with exit status 3', 'was ended by SIGSEGV (exit status 139)')
    """
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return f"ended with exit status {status}"
    return f"was ended by {name} (exit status {status})"


# --- Counters, for ``python -m jaxccomp run --live`` ----------------------------------------------

LIVE = "JAXCCOMP_LIVE"
_EVERY_SECONDS = 1.0


@dataclasses.dataclass
class Counters:
    """A rank's counters since its start, or since its last `jaxccomp.stats.reset`.

    Attributes:
      calls: operations that have ended.
      sent_bytes: encoded bytes sent.
      raw_bytes: the size of the same values before encoding.
      wait_seconds: time from the calls to the first message of another rank.
      blocked: operations that have been open for more than a second.
    """

    calls: float = 0
    sent_bytes: float = 0
    raw_bytes: float = 0
    wait_seconds: float = 0
    blocked: float = 0


def parse_counters(value: object) -> Counters | None:
    """Return the counters of a message; None if it is not valid: the program may print anything."""
    names = {field.name for field in dataclasses.fields(Counters)}
    if not isinstance(value, Mapping) or value.keys() != names:
        return None
    numbers = value.values()
    # Not NaN, and such that sums and differences are finite.
    valid = all(type(each) in (int, float) and 0 <= each < 2.0**63 for each in numbers)
    return Counters(**value) if valid else None


def start_reports() -> None:
    """Report this process's counters to the launcher once per second, and at exit."""
    over, process = threading.Event(), os.getpid()

    def report() -> None:
        # Forked children have the rank's standard error, and none of its threads.
        if os.getpid() == process:
            with contextlib.suppress(OSError):  # the program has closed it
                os.write(2, control(live=counters()))

    def loop() -> None:
        while not over.wait(_EVERY_SECONDS):
            report()

    def end() -> None:
        # The interpreter must not end while the thread is in the engine.
        over.set()
        thread.join()
        report()

    thread = threading.Thread(target=loop, name="jaxccomp-live", daemon=True)
    atexit.register(end)
    thread.start()


def counters() -> dict[str, float]:
    """Return the sums of this process's operations; zeros before the engine is loaded."""
    found = dict.fromkeys((field.name for field in dataclasses.fields(Counters)), 0.0)
    core = sys.modules.get("jaxccomp._core")
    if core is None:
        return found
    for row in core.stats().values():
        for name in ("calls", "sent_bytes", "raw_bytes"):
            found[name] += row[name]
    found["wait_seconds"] = sum(row["wait_seconds"] for row in core.call_log()[0])
    found["blocked"] = core.open_operations(time.monotonic_ns() - int(_EVERY_SECONDS * 1e9))
    return found


# --- Throughput, for ``python -m jaxccomp tune`` --------------------------------------------------

_LINE = re.compile(r"jaxccomp-throughput: (\S+) samples/s")


def report_throughput(samples_per_second: float) -> None:
    """Report this rank's samples per second to ``python -m jaxccomp tune``.

    Every rank calls it once, with its own samples; the sum is the job's throughput. The last of
    several calls counts. It prints one line, which any program may print itself::

        jaxccomp-throughput: 1234.5 samples/s

    Measure after compilation, and wait for the last result (``jax.block_until_ready``) before
    reading the clock.

    Args:
      samples_per_second: this rank's samples per second; with replicas (``vmap``), of all replicas.

    Raises:
      InvalidArgumentError: for a number that is not positive and finite.

    >>> report_throughput(1234.5)
    jaxccomp-throughput: 1234.5 samples/s
    """
    rate = float(samples_per_second)
    if not (math.isfinite(rate) and rate > 0):
        raise errors.InvalidArgumentError(
            f"report_throughput takes a positive number of samples per second, not {rate}."
        )
    print(f"jaxccomp-throughput: {rate} samples/s", flush=True)


def parse_throughput(line: str) -> float | None:
    """Return the number in a line of `report_throughput`; None for other lines."""
    match = _LINE.fullmatch(line.strip())
    try:
        rate = float(match[1]) if match else None
    except ValueError:
        return None
    return rate if rate is not None and math.isfinite(rate) and rate > 0 else None

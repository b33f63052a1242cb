"""Statistics of this process's operations: bytes sent and time.

`get` returns sums for each kind of operation, `log` a row for each call site. Both are local:
neither communicates. Operations that run as ``jax.lax`` collectives (``backend="xla"``) are counted
on CPUs, with the size of their operands: XLA tells neither their time nor the bytes that it sends.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import operator
import os
import time
from collections.abc import Mapping

from jaxccomp import errors
from jaxccomp._native import engine, terminal

__all__ = [
    "CallLog",
    "LoggedCall",
    "OperationStats",
    "Stats",
    "get",
    "log",
    "reset",
]

_COMBINE = {"peak_bytes": max, "bound_bytes": max}


@dataclasses.dataclass(frozen=True)
class OperationStats:
    """One kind of operation, summed over its calls.

    Attributes:
      calls: how often it ran.
      value_bytes: the size of its operands.
      sent_bytes: encoded bytes sent.
      remote_bytes: the part of ``sent_bytes`` that left the process.
      peak_bytes: the maximum temporary memory of one call: scratch, encoded values, and payloads of
        other hosts that arrived early. Lossless and sparse codecs also need a workspace per thread.
      bound_bytes: the limit of the scratch and encoded values of the call of ``peak_bytes``: 4
        chunks for each rank that it exchanges values with. Payloads that arrive early are limited
        for all operations together: 4 MiB per process of another host, 64 MiB in total.
      seconds: the sum over all calls of the time from start to end, also of concurrent calls.
      raw_bytes: the size of the values of ``sent_bytes`` before encoding.
    """

    calls: int = 0
    value_bytes: int = 0
    sent_bytes: int = 0
    remote_bytes: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    bound_bytes: int = 0
    raw_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Stats:
    """All operations since the start or the last :func:`reset`."""

    operations: Mapping[str, OperationStats]

    @property
    def total(self) -> OperationStats:
        """The sum over all operations; the maximum for memory."""
        total = OperationStats()
        for each in self.operations.values():
            total = OperationStats(
                **{
                    field.name: _COMBINE.get(field.name, operator.add)(
                        getattr(total, field.name), getattr(each, field.name)
                    )
                    for field in dataclasses.fields(total)
                }
            )
        return total

    def __str__(self) -> str:
        lines = [
            f"{'operation':<16}{'calls':>9}{'values':>12}{'sent':>12}{'memory':>12}{'seconds':>10}"
        ]
        rows = (*sorted(self.operations.items()), ("all", self.total))
        for name, each in rows:
            lines.append(
                f"{name:<16}{each.calls:>9}{terminal.format_size(each.value_bytes):>12}"
                f"{terminal.format_size(each.sent_bytes):>12}{terminal.format_size(each.peak_bytes):>12}"
                f"{each.seconds:>10.3f}"
            )
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class LoggedCall:
    """One call site, summed over its calls.

    Equal call sites share a row: a line that is compiled twice, an unrolled loop, and all devices
    of this process.

    Attributes:
      operation: "allreduce", for instance; "others" for all call sites beyond 4096.
      reduce_op: "sum" or another reduction; "" without a reduction.
      root: root of a rooted collective; else -1.
      operands: shapes and dtypes, such as "float32[8,4], int32[]".
      where: the line of the program, such as "train.py:41".
      communicator: its name; "" for a call along axes.
      ranks: the number of ranks.
      backend: "native" (the engine), "mpi", or "xla" (``jax.lax``: only ``calls`` and
        ``operand_bytes`` are known).
      algorithm: the algorithm of the last call.
      codec: a spec; "raw" for none.
      calls: completed calls, counted per device.
      failed: the part of ``calls`` that raised an error, or was refused after an error of the
        communicator. Sums of bytes include failed calls, sums of seconds do not.
      operand_bytes: the size of the operands of all calls.
      sent_bytes: encoded bytes that this process has sent, without message headers.
      remote_bytes: the part of ``sent_bytes`` that left the process.
      received_bytes: encoded bytes received, without message headers.
      seconds: the sum over all calls of the time from start to end on this rank.
      wait_seconds: the part of ``seconds`` before the first message of another rank arrived: a
        lower bound for the time spent waiting for slower ranks; 0 if this rank receives nothing.
      median_seconds: the median of the last 64 calls. The first call of a program takes longer,
        since ranks compare the program.
      max_seconds: the time of the slowest call.
    """

    operation: str
    reduce_op: str
    root: int
    operands: str
    where: str
    communicator: str
    ranks: int
    backend: str
    algorithm: str
    codec: str
    calls: int
    failed: int
    operand_bytes: int
    sent_bytes: int
    remote_bytes: int
    received_bytes: int
    seconds: float
    wait_seconds: float
    median_seconds: float
    max_seconds: float

    @property
    def most_seconds(self) -> float:
        """`max_seconds`, under its name in version 0.1."""
        errors.warn_renamed("LoggedCall.most_seconds", "max_seconds")
        return self.max_seconds


_LOGGED = tuple(field.name for field in dataclasses.fields(LoggedCall))


@dataclasses.dataclass(frozen=True)
class CallLog:
    """The rows of all call sites; ``str()`` is a table.

    Attributes:
      rows: the call sites, the slowest in total first.
      since: Unix time of the start of counting; 0 before the engine's start.
    """

    rows: tuple[LoggedCall, ...]
    since: float

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows to a file.

        Args:
          path: ends with ``.csv`` for a line of names and a line for each row. Any other file is
            JSON: an object with ``since`` and a list of ``rows``.

        Raises:
          OSError: if it cannot be written.
        """
        rows = [dataclasses.asdict(row) for row in self.rows]
        with open(path, "w", encoding="utf-8", newline="") as file:
            if os.fspath(path).endswith(".csv"):
                writer = csv.DictWriter(file, _LOGGED, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            else:
                json.dump({"since": self.since, "rows": rows}, file, indent=1)

    def __str__(self) -> str:
        if not self.rows:
            return "no calls"
        # Two lines for each call site, so that they fit on a terminal.
        calls = [_HEAD[:_SPLIT], *(_cells(row)[:_SPLIT] for row in self.rows)]
        counts = [("", *_HEAD[_SPLIT:]), *(("", *_cells(row)[_SPLIT:]) for row in self.rows)]
        pairs = zip(
            terminal.lines(calls, width=_WIDTH),
            terminal.lines(counts, "<" + ">" * len(_HEAD), width=_WIDTH),
            strict=True,
        )
        lines = [line for pair in pairs for line in pair]
        since = datetime.datetime.fromtimestamp(self.since).isoformat(" ", "seconds")
        return "\n".join([*lines, f"since {since}"])


_WIDTH = 100
_SPLIT = 7  # cells on the first line
_HEAD = (
    *("line", "operation", "ranks", "communicator", "backend", "algorithm", "codec", "calls"),
    *("operands", "sent", "received", "seconds", "waiting", "median", "max"),
)


def _cells(row: LoggedCall) -> tuple[str, ...]:
    return (
        row.where,
        f"{row.operation} {row.reduce_op}".rstrip(),
        str(row.ranks),
        row.communicator or "axes",
        row.backend,
        row.algorithm,
        row.codec,
        str(row.calls) + (f" ({row.failed} failed)" if row.failed else ""),
        *map(terminal.format_size, (row.operand_bytes, row.sent_bytes, row.received_bytes)),
        *map(_time, (row.seconds, row.wait_seconds, row.median_seconds, row.max_seconds)),
    )


def _time(seconds: float) -> str:
    if seconds >= 1000:
        return f"{seconds:.0f} s"
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"


def get(wait: bool = False) -> Stats:
    """The statistics so far; empty before the first operation and without the engine.

    Args:
      wait: wait first until all computations of this thread, and the operations in progress, have
        ended: JAX dispatches asynchronously, so the last ones may still run.
    """
    if not engine.available():
        return Stats({})
    if wait:
        _wait()
    fields = {field.name for field in dataclasses.fields(OperationStats)}
    return Stats(
        {
            name: OperationStats(**{key: row[key] for key in row if key in fields})
            for name, row in engine.load().stats().items()
        }
    )


_POLL_SECONDS = 1e-3


def _wait() -> None:
    """Wait for the results of dispatched programs, and for open operations."""
    from jaxccomp._native import platforms  # not above: `import jaxccomp.stats` loads no JAX

    platforms.wait_for_computations()
    core, begun = engine.load(), time.monotonic_ns()
    while core.open_operations(begun):
        time.sleep(_POLL_SECONDS)


def log() -> CallLog:
    """A row for each call site that has run; empty before the first call and without the engine.

    The cost per call is too small to measure. Operations with ``backend="xla"`` are counted on
    CPUs, by a call beside the collective; their bytes sent and times are 0.

    Returns:
      The `CallLog` of this process so far, or since the last :func:`reset`.

    Example:
      >>> import jax.numpy as jnp
      >>> jaxccomp.stats.reset()
      >>> for _ in range(3):
      ...     total = jaxccomp.allreduce(jnp.ones(1000, jnp.float32)).block_until_ready()
      >>> (row,) = jaxccomp.stats.log().rows
      >>> row.operation, row.operands, row.calls, row.operand_bytes
      ('allreduce', 'float32[1000]', 3, 12000)
      >>> jaxccomp.stats.log().save("calls.csv")
    """
    if not engine.available():
        return CallLog((), 0.0)
    rows, since = engine.load().call_log()
    logged = [LoggedCall(**{name: row[name] for name in _LOGGED}) for row in rows]
    logged.sort(key=lambda row: (-row.seconds, row.where, row.operation, row.operands))
    return CallLog(tuple(logged), since)


def reset() -> None:
    """Resets the counters of `get` and `log`."""
    if engine.available():
        engine.load().reset_stats()

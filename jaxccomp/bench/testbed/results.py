"""What a comparison has measured: rows, lines of JSON, and a table of each contender's best."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass
class Row:
    """One operation, contender and setting, how it is run, and what was measured of it.

    Attributes:
      op: the operation.
      contender: an MPI, or jaxccomp and its codec.
      setting: what the contender was set to.
      python: the interpreter that runs the worker.
      arguments: of the worker.
      env: variables for mpiexec and all ranks.
      calls: seconds of each call.
      wire_bytes: over the busiest link in one call.
      error: why there are no (more) calls.
    """

    op: str
    contender: str
    setting: str
    python: str
    arguments: tuple[str, ...]
    env: dict[str, str]
    calls: list[float] = dataclasses.field(default_factory=list)
    wire_bytes: int = 0
    error: str = ""

    @property
    def seconds(self) -> float | None:
        """The median over all calls; None without any."""
        return round(statistics.median(self.calls), 5) if self.calls else None

    def line(self, goodput: float, **conditions: Any) -> dict[str, Any]:
        """The row as it is written; ``goodput`` is a TCP stream's bytes per second."""
        line = {
            "op": self.op,
            **conditions,
            "contender": self.contender,
            "setting": self.setting,
            "seconds": self.seconds,
            "calls": len(self.calls),
            "wire_bytes": self.wire_bytes or None,
            "goodput_GBps": round(goodput / 1e9, 5),
        }
        return line | ({"error": self.error} if self.error else {})


def read(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The lines of a file that ``compare --json`` wrote."""
    return [json.loads(line) for line in lines if line.strip()]


def best(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each operation and contender the fastest setting."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in lines:
        key = tuple(line[name] for name in ("op", "contender", "hosts", "link", "size"))
        if key not in found or _seconds(line) < _seconds(found[key]):
            found[key] = line
    return list(found.values())


def _seconds(line: dict[str, Any]) -> float:
    return float("inf") if line["seconds"] is None else line["seconds"]


def markdown(lines: list[dict[str, Any]]) -> str:
    """A table of the best of each contender, and what failed."""
    table = [
        "| operation | links | size | contender | setting | time | on the wire | of its floor |",
        "|---|---|---|---|---|---:|---:|---:|",
    ]
    for line in best(lines):
        where = f"{line['hosts']} x {line['link']}"
        cells = [line["op"], where, f"{line['size'] / (1 << 20):g} MiB"]
        cells += [line["contender"], line["setting"], *_measured(line)]
        table.append("| " + " | ".join(cells) + " |")
    failed = [
        f"{line['op']}, {line['contender']}, {line['setting']}: {line['error']}"
        for line in lines
        if "error" in line
    ]
    return "\n".join([*table, *failed])


def _measured(line: dict[str, Any]) -> list[str]:
    if line["seconds"] is None:
        return ["failed", "", ""]
    time, wire = f"{line['seconds']:.3f} s", line["wire_bytes"]
    if not wire:
        return [time, "", ""]
    floor = wire / (line["goodput_GBps"] * 1e9)
    return [time, f"{wire / (1 << 20):.1f} MiB", f"{line['seconds'] / floor:.2f} x"]

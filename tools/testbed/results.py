"""Results of a comparison: rows, JSON lines, and a table of each contender's fastest settings."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from typing import Any

from jaxccomp._native import terminal
from testbed.cases import Case

MPIS = ("mpich", "openmpi")


@dataclasses.dataclass
class Row:
    """A case, contender and setting: its command and its measurements.

    Attributes:
      case: the operation and its input.
      contender: an MPI, or a package that runs over one.
      setting: name of the contender's setting.
      python: the interpreter that runs the worker.
      worker: the contender's name in ``collectives.CONTENDERS``.
      env: variables for mpiexec and all ranks.
      calls: seconds of each call.
      wire_bytes: bytes over the busiest link in one call.
      found: the worker's check of the result, and its peak memory.
      error: why there are no calls, or no further ones.
    """

    case: Case
    contender: str
    setting: str
    python: str
    worker: str
    env: dict[str, str]
    calls: list[float] = dataclasses.field(default_factory=list)
    wire_bytes: int = 0
    found: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""

    @property
    def seconds(self) -> float | None:
        """The median over all calls; None without any."""
        return round(statistics.median(self.calls), 5) if self.calls else None

    def line(self, goodput: float, **conditions: Any) -> dict[str, Any]:
        """The row as a line of results; ``goodput`` is a TCP stream's bytes per second."""
        line = {
            "op": self.case.op,
            **conditions,
            "input": self.case.values,
            "contender": self.contender,
            "setting": self.setting,
            "seconds": self.seconds,
            "calls": len(self.calls),
            "wire_bytes": self.wire_bytes or None,
            "goodput_GBps": round(goodput / 1e9, 5),
            **self.found,
        }
        return line | ({"error": self.error} if self.error else {})


def best(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fastest setting of each peer for each operation, and every case of this package."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in lines:
        key = (*_place(line), line["contender"])
        if line["contender"].startswith("jaxccomp"):
            key += (line["input"], line["setting"])
        if key not in found or _seconds(line) < _seconds(found[key]):
            found[key] = line
    return list(found.values())


def with_ratios(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds the floor to each line, and ratios: time of the line / another time.

    Above 1 the line is slower. The other times are:
      of_floor: the time of the line's bytes on the wire.
      of_larger_floor: the larger of that and the coding time (own.coding_seconds), if measured.
      of_best_mpi: the faster MPI at its fastest setting; None without an MPI in the same scenario
        and size.
      of_default_mpi: the faster MPI at its default setting; None likewise.
      of_mpi_transport: for lines over UCX, the same case over MPI.
    """
    made = []
    for line in lines:
        peers = [o for o in lines if o["contender"] in MPIS and _place(o) == _place(line)]
        defaults = [other for other in peers if other["setting"] == "default"]
        stream = line["goodput_GBps"] * 1e9
        floor = line["wire_bytes"] / stream if line["wire_bytes"] else None
        coding = line.get("coding_seconds")
        by_mpi = [o for o in lines if _is_over_mpi(o) and _case(o) == _case(line)]
        over_mpi = min(map(_seconds, by_mpi), default=None) if not _is_over_mpi(line) else None
        made.append(
            line
            | {
                "floor_seconds": round(floor, 5) if floor else None,
                "of_floor": _ratio(line, floor),
                "of_larger_floor": _ratio(line, max(floor, coding)) if floor and coding else None,
                "of_best_mpi": _ratio(line, min(map(_seconds, peers), default=None)),
                "of_default_mpi": _ratio(line, min(map(_seconds, defaults), default=None)),
                "of_mpi_transport": _ratio(line, over_mpi),
            }
        )
    return made


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    # Compare only lines of one scenario: scenarios run at different times.
    return tuple(line[name] for name in ("scenario", "op", "hosts", "link", "size"))


def _case(line: dict[str, Any]) -> tuple[Any, ...]:
    """Key of the case in a line, without its transport."""
    what = line["contender"].rpartition(", ")[0]
    return (*_place(line), what, line["input"], line["setting"])


def _is_over_mpi(line: dict[str, Any]) -> bool:
    return line["contender"].rpartition(", ")[2] in MPIS


def _seconds(line: dict[str, Any]) -> float:
    return float("inf") if line["seconds"] is None else line["seconds"]


def _ratio(line: dict[str, Any], other: float | None) -> float | None:
    if line["seconds"] is None or other in (None, float("inf")):
        return None
    return round(line["seconds"] / other, 4)


def _times(name: str) -> Any:
    return lambda line: f"{line[name]:.2f} x" if line[name] else ""


def _milliseconds(name: str) -> Any:
    return lambda line: f"{1e3 * line[name]:.0f} ms" if line.get(name) else ""


def _mebibytes(name: str) -> Any:
    return lambda line: f"{line[name] / (1 << 20):.1f} MiB" if line.get(name) else ""


# Columns: heading, alignment, and the function that makes a cell.
_COLUMNS = (
    ("operation", "<", lambda line: line["op"]),
    ("links", "<", lambda line: f"{line['hosts']} x {line['link']}"),
    ("size", "<", lambda line: f"{line['size'] / (1 << 20):g} MiB"),
    ("values", "<", lambda line: line["input"]),
    ("contender", "<", lambda line: line["contender"]),
    ("setting", "<", lambda line: line["setting"]),
    ("time", ">", lambda line: f"{line['seconds']:.3f} s" if line["seconds"] else "failed"),
    ("on the wire", ">", _mebibytes("wire_bytes")),
    ("of its floor", ">", _times("of_floor")),
    ("coding at least", ">", _milliseconds("coding_seconds")),
    ("of wire or coding", ">", _times("of_larger_floor")),
    ("of best MPI", ">", _times("of_best_mpi")),
    ("of default MPI", ">", _times("of_default_mpi")),
    ("of MPI's transport", ">", _times("of_mpi_transport")),
    ("checked", "<", lambda line: line.get("check", "")),
    ("held at most", ">", _mebibytes("peak_bytes")),
    ("bound", ">", _mebibytes("bound_bytes")),
)


def markdown(lines: list[dict[str, Any]]) -> str:
    """A table of each contender's fastest settings without empty columns, and the failures."""
    lines = [line for line in lines if "op" in line]  # without the facts of the machine
    shown = best(with_ratios(lines))
    columns = [(head, how, [cell(line) for line in shown]) for head, how, cell in _COLUMNS]
    columns = [column for column in columns if any(column[2])] or columns
    heads, align, cells = zip(*columns, strict=True)
    table = terminal.markdown(heads, zip(*cells, strict=True), "".join(align))
    failed = [
        f"{line['op']}, {line['contender']}, {line['setting']}: {line['error']}"
        for line in lines
        if "error" in line
    ]
    return "\n".join([table, *failed])

"""Writes measurements as JSON lines, and as a Markdown table of times and ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from testbed import scenario
from testbed.scenario import Line

from bench import bars
from bench.compare import Measurement, Plan, Results
from jaxccomp._native import terminal

_SMALL_BYTES = 64 << 10


def lines(plan: Plan, results: Results, missing: Mapping[str, str]) -> list[Line]:
    """One line per measurement, and one per contender that cannot run here."""
    measured = [
        {
            "contender": row.contender,
            "op": row.operation,
            "size_bytes": row.size_bytes,
            "ranks": plan.ranks,
            "median_us": round(row.median_us, 3) if row.rounds_us else None,
            "rounds_us": [round(each, 3) for each in row.rounds_us],
            "bind": row.bind,
            **({"error": row.error} if row.error else {}),
        }
        for row in results.values()
    ]
    return measured + [{"contender": name, "missing": reason} for name, reason in missing.items()]


def parse(rows: Iterable[Line], operations: Sequence[str]) -> Results:
    """The measurements of ``operations`` among the lines of a results file."""
    results: Results = {}
    for row in rows:
        if "op" in row and row["op"] in ("empty", *operations):
            key = (row["contender"], row["op"], row["size_bytes"])
            results[key] = Measurement(*key, row["rounds_us"], row["bind"], row.get("error", ""))
    return results


def markdown(results: Results) -> str:
    """A table of the others' time / jaxccomp's time, and the acceptance thresholds."""
    peers = [
        name
        for name in dict.fromkeys(row.contender for row in results.values())
        if name not in (bars.SUBJECT, "empty")
    ]
    heads = ("operation", "size", bars.SUBJECT, "empty jit + mpi4py", *peers)
    rows = []
    for row in results.values():
        if row.contender != bars.SUBJECT:
            continue
        case = (row.operation, row.size_bytes)
        measured = [results.get((peer, *case)) for peer in peers]
        others = [
            _floor_us(results, *case),
            *(each.median_us if each and each.rounds_us else None for each in measured),
        ]
        cells = [row.operation, terminal.format_size(row.size_bytes), f"{_time(row.median_us)} us"]
        cells += ["" if other is None else f"{other / row.median_us:.2f}" for other in others]
        rows.append(cells)
    table = scenario.markdown(heads, rows, texts=2)
    said = bars.lines(results)
    return "\n".join([table, *(["", *said] if said else [])])


def _floor_us(results: Results, operation: str, size_bytes: int) -> float | None:
    """Lower bound for a small message: an empty jitted call plus the bare MPI call."""
    empty = results.get(("empty", "empty", 1024))
    bare = results.get(("mpi4py", operation, size_bytes))
    if size_bytes > _SMALL_BYTES or not (empty and bare and empty.rounds_us and bare.rounds_us):
        return None
    return empty.median_us + bare.median_us


def _time(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 1000 else f"{microseconds:.0f}"

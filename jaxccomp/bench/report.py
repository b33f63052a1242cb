"""Shows measurements as a table of times and ratios, and writes them as lines of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from jaxccomp import stats
from jaxccomp._native import json_files, tables
from jaxccomp.bench import bars, machine
from jaxccomp.bench.compare import Measurement, Plan, Results

_SMALL_BYTES = 64 << 10


def floor_us(results: Results, operation: str, size_bytes: int) -> float | None:
    """An empty jitted call and the bare MPI call together: what a small message must cost."""
    empty = results.get(("empty", "empty", 1024))
    bare = results.get(("mpi4py", operation, size_bytes))
    if not (empty and bare and empty.rounds_us and bare.rounds_us):
        return None
    return empty.median_us + bare.median_us


def show(plan: Plan, results: Results, missing: Mapping[str, str]) -> None:
    """Prints the table: microseconds, and how many times jaxccomp's each contender takes."""
    peers = [name for name in plan.names if name not in (bars.SUBJECT, "empty")]
    rows = [("operation", "size", bars.SUBJECT, "empty + mpi4py", *peers)]
    for operation in plan.operations:
        for size in plan.sizes:
            subject = results[(bars.SUBJECT, operation, size)]
            own = subject.median_us
            floor = floor_us(results, operation, size) if size <= _SMALL_BYTES else None
            cells = [_time(own) if subject.rounds_us else "failed", _ratio(floor, own)]
            for peer in peers:
                row = results.get((peer, operation, size))
                other = row.median_us if row and row.rounds_us else None
                cells.append(_ratio(other, own, row.error if row else ""))
            rows.append((operation, stats.format_bytes(size), *cells))
    print(
        f"microseconds per call, {plan.ranks} ranks, median of {plan.rounds} rounds "
        "(in brackets: times jaxccomp's)"
    )
    for line in tables.lines(rows, "<<" + ">" * (len(peers) + 2)):
        print(line)
    empty = results.get(("empty", "empty", 1024))
    if empty and empty.rounds_us:
        print(f"empty jitted call: {_time(empty.median_us)} us")
    for line in bars.lines(results):
        print(line)
    for row in results.values():
        if row.error:
            size = stats.format_bytes(row.size_bytes)
            print(f"{row.contender} {row.operation} {size}: {row.error}")
    for name, reason in missing.items():
        print(f"not measured: {name}: {reason}")


def read(path: str, operations: Sequence[str]) -> Results:
    """The measurements of ``operations`` in a file that ``write`` wrote."""
    results: Results = {}
    for row in json_files.lines(path):
        if "op" in row and row["op"] in ("empty", *operations):
            key = (row["contender"], row["op"], row["size_bytes"])
            results[key] = Measurement(*key, row["rounds_us"], row["bind"], row.get("error", ""))
    return results


def markdown(results: Results) -> str:
    """The measurements for a page: how many times jaxccomp's the others take, and the bars."""
    peers = [
        name
        for name in dict.fromkeys(row.contender for row in results.values())
        if name not in (bars.SUBJECT, "empty")
    ]
    rows = []
    for row in results.values():
        if row.contender != bars.SUBJECT:
            continue
        case = (row.operation, row.size_bytes)
        floor = floor_us(results, *case) if row.size_bytes <= _SMALL_BYTES else None
        measured = [results.get((peer, *case)) for peer in peers]
        others = [
            floor,
            *(each.median_us if each and each.rounds_us else None for each in measured),
        ]
        cells = [row.operation, stats.format_bytes(row.size_bytes), f"{_time(row.median_us)} us"]
        cells += ["" if other is None else f"{other / row.median_us:.2f}" for other in others]
        rows.append(cells)
    heads = ("operation", "size", bars.SUBJECT, "empty jit + mpi4py", *peers)
    table = tables.markdown(heads, rows, "<<" + ">" * (len(peers) + 2))
    said = bars.lines(results)
    return "\n".join([table, *(["", *said] if said else [])])


def _time(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 1000 else f"{microseconds:.0f}"


def _ratio(microseconds: float | None, own: float, error: str = "") -> str:
    if microseconds is None:
        return "failed" if error else "-"
    ratio = microseconds / own
    return _time(microseconds) + ("" if math.isnan(ratio) else f" ({ratio:.2f}x)")


def write(plan: Plan, results: Results, missing: Mapping[str, str], file: TextIO) -> None:
    """Writes one line for the machine, one per measurement, one per contender left out."""
    lines: list[dict[str, Any]] = [{"machine": machine.facts(plan.pythons[bars.SUBJECT])}]
    lines += [
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
    lines += [{"contender": name, "missing": reason} for name, reason in missing.items()]
    for line in lines:
        file.write(json.dumps(line) + "\n")

"""Shows measurements as a table of times and ratios, and writes them as lines of JSON."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import jax

from jaxccomp import stats
from jaxccomp._version import __version__
from jaxccomp.bench import launch
from jaxccomp.bench.compare import Plan, Results

_SUBJECT = "jaxccomp"
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
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if os.isatty(1) else 140)
    peers = [name for name in plan.names if name not in (_SUBJECT, "empty")]
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"microseconds per call, {plan.ranks} ranks, median of {plan.rounds} rounds "
        "(in brackets: times jaxccomp's)",
    )
    for heading in ("operation", "size"):
        table.add_column(heading)
    for heading in (_SUBJECT, "empty + mpi4py", *peers):
        table.add_column(heading, justify="right")
    for operation in plan.operations:
        for size in plan.sizes:
            subject = results[(_SUBJECT, operation, size)]
            own = subject.median_us
            floor = floor_us(results, operation, size) if size <= _SMALL_BYTES else None
            cells = [_time(own) if subject.rounds_us else "failed", _ratio(floor, own)]
            for peer in peers:
                row = results[(peer, operation, size)]
                cells.append(_ratio(row.median_us if row.rounds_us else None, own, row.error))
            table.add_row(operation, stats.format_bytes(size), *cells)
        table.add_section()
    console.print(table)
    empty = results.get(("empty", "empty", 1024))
    if empty and empty.rounds_us:
        console.print(f"empty jitted call: {_time(empty.median_us)} us")
    for row in results.values():
        if row.error:
            size = stats.format_bytes(row.size_bytes)
            console.print(f"{row.contender} {row.operation} {size}: {row.error}", markup=False)
    for name, reason in missing.items():
        console.print(f"not measured: {name}: {reason}", markup=False)


def markdown(lines: Iterable[str]) -> str:
    """The table of a file that ``write`` wrote, for a page: times jaxccomp's, per peer."""
    rows = [json.loads(line) for line in lines]
    times = {
        (row["contender"], row["op"], row["size_bytes"]): row["median_us"]
        for row in rows
        if row.get("median_us")
    }
    names = list(dict.fromkeys(name for name, op, _ in times if op != "empty"))
    peers = [name for name in names if name != _SUBJECT]
    empty = times.get(("empty", "empty", 1024))
    table = [
        f"| operation | size | {_SUBJECT} | empty jit + mpi4py | " + " | ".join(peers) + " |",
        "|---|---|" + "---:|" * (len(peers) + 2),
    ]
    for name, operation, size in times:
        if name != _SUBJECT:
            continue
        own = times[name, operation, size]
        bare = times.get(("mpi4py", operation, size))
        floor = f"{(empty + bare) / own:.2f}" if empty and bare and size <= _SMALL_BYTES else ""
        ratios = [
            f"{times[peer, operation, size] / own:.2f}" if (peer, operation, size) in times else ""
            for peer in peers
        ]
        cells = [operation, stats.format_bytes(size), f"{_time(own)} us", floor, *ratios]
        table.append("| " + " | ".join(cells) + " |")
    return "\n".join(table)


def _time(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 1000 else f"{microseconds:.0f}"


def _ratio(microseconds: float | None, own: float, error: str = "") -> str:
    if microseconds is None:
        return "failed" if error else "-"
    ratio = microseconds / own
    return _time(microseconds) + ("" if math.isnan(ratio) else f" ({ratio:.2f}x)")


def write(plan: Plan, results: Results, missing: Mapping[str, str], file: TextIO) -> None:
    """Writes one line for the machine, one per measurement, one per contender left out."""
    lines: list[dict[str, Any]] = [{"machine": machine(plan)}]
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


def machine(plan: Plan) -> dict[str, Any]:
    """What the figures depend on; no names of machines or people."""
    return {
        "jaxccomp": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "mpi": " ".join(launch.vendor(plan.pythons[_SUBJECT])),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.system() + " " + platform.release(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.machine()

"""Prints what a collective takes on a described cluster, computed from its schedules."""

from __future__ import annotations

import argparse
import dataclasses
import json

from jaxccomp import schedules
from jaxccomp._native import tables
from jaxccomp.cli.terminal import parse_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "--cluster",
        required=True,
        metavar="FILE|NxRATE",
        help="a profile in JSON, or hosts and their links: 4x1gbit, 8x2x25gbit (2 ranks on each)",
    )
    parser.add_argument("--op", required=True, choices=schedules.COLLECTIVES, metavar="OP")
    parser.add_argument("--size", default="64MiB", help="of each rank (default: %(default)s)")
    parser.add_argument(
        "--codec", default="raw", help="one of the profile's (default: %(default)s)"
    )
    parser.add_argument("--dtype", default="float32", help="default: %(default)s")
    parser.add_argument("--root", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--chunk", help="default: the option chunk_bytes")
    parser.add_argument(
        "--algorithms", default="all", help="all, auto, or names separated by commas"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Simulates, and prints the table."""
    options = {
        "cluster": arguments.cluster,
        "size_bytes": parse_size(arguments.size),
        "codec": arguments.codec,
        "dtype": arguments.dtype,
        "root": arguments.root,
        "chunk_bytes": parse_size(arguments.chunk) if arguments.chunk else None,
    }
    if arguments.algorithms == "all":
        rows, missing = schedules.simulate_all(arguments.op, **options)
    else:
        names = arguments.algorithms.split(",")
        rows, missing = [schedules.simulate(arguments.op, name, **options) for name in names], {}
    if arguments.json:
        found = [dataclasses.asdict(row) | {"link_bytes": row.link_bytes} for row in rows]
        print(json.dumps({"op": arguments.op, "predictions": found, "missing": missing}))
        return 0
    print("\n".join(_table(rows)))
    for name, why in missing.items():
        print(f"left out: {name}: {why}")
    return 0


def _table(rows: list[schedules.Prediction]) -> list[str]:
    """The lines of the table of predictions."""
    lines = [("algorithm", "time", "link", "of floor", "where the time goes (cores busy)")]
    for row in rows:
        floor = f"{row.seconds / row.floor_seconds:.2f} x" if row.floor_seconds else "-"
        total = sum(row.busy_seconds.values())
        parts = ", ".join(
            f"{name} {seconds / total:.0%}"
            for name, seconds in sorted(row.busy_seconds.items(), key=lambda item: -item[1])
            if total and seconds >= 0.005 * total
        )
        times = (f"{row.seconds * 1e3:.3f} ms", f"{row.link_bytes / (1 << 20):.1f} MiB", floor)
        lines.append((row.algorithm, *times, f"{row.busy_cores:.0%}: {parts or '-'}"))
    return tables.lines(lines, "<>>><")

"""Commands that start no ranks: schedule, simulate, plan, trace, flight."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from jaxccomp import schedules
from jaxccomp import trace as traces
from jaxccomp._native import terminal
from jaxccomp._native.terminal import parse_size
from jaxccomp.bench import profile
from jaxccomp.schedules import _cluster, _plans
from jaxccomp.trace import _flight


class Schedule:
    """Prints the tasks of a rank in a collective; runs nothing."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The command's arguments."""
        parser.add_argument("collective", choices=schedules.COLLECTIVES, metavar="COLLECTIVE")
        parser.add_argument("--algorithm", default="auto", help="default: %(default)s")
        parser.add_argument("--ranks", type=int, default=4, help="default: %(default)s")
        parser.add_argument("--rank", type=int, default=0, help="the rank (default: %(default)s)")
        parser.add_argument("--root", type=int, default=0, help="default: %(default)s")
        parser.add_argument("--bytes", default="1MiB", help="size of a block (%(default)s)")
        parser.add_argument("--chunk", help="default: the option chunk_bytes")
        parser.add_argument("--encoded", "--coded", action="store_true", help="with a codec")
        parser.add_argument("--lossless", action="store_true", help="with a lossless codec")
        parser.add_argument("--hosts", default="", help="host number of each rank, as in 0,0,1,1")

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Prints the schedule."""
        made = schedules.make(
            arguments.collective,
            arguments.algorithm,
            rank=arguments.rank,
            ranks=arguments.ranks,
            root=arguments.root,
            block_bytes=parse_size(arguments.bytes),
            chunk_bytes=parse_size(arguments.chunk) if arguments.chunk else None,
            encoded=arguments.encoded or arguments.lossless,
            lossless=arguments.lossless,
            hosts=[int(host) for host in arguments.hosts.split(",") if host],
        )
        print(
            f"{arguments.collective} {made.algorithm}, rank {arguments.rank} of {arguments.ranks}"
        )
        print(made, end="")
        return 0


class Simulate:
    """Predicts the time of a collective on a described cluster, from its schedules."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The command's arguments."""
        parser.add_argument(
            "--cluster",
            required=True,
            metavar="FILE|NxRATE",
            help="a profile in JSON, or hosts and their links: 4x1gbit, 8x2x25gbit (2 ranks on "
            "each)",
        )
        parser.add_argument("--op", required=True, choices=schedules.COLLECTIVES, metavar="OP")
        parser.add_argument("--size", default="64MiB", help="bytes of each rank (%(default)s)")
        parser.add_argument(
            "--codec",
            default="raw",
            help="if the profile lacks it, it is measured on a core here (default: %(default)s)",
        )
        parser.add_argument("--dtype", default="float32", help="default: %(default)s")
        parser.add_argument("--root", type=int, default=0, help="default: %(default)s")
        parser.add_argument("--chunk", help="default: the option chunk_bytes")
        parser.add_argument(
            "--algorithms", default="all", help="all, auto, or names separated by commas"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Simulates, and prints the table."""
        cluster = _cluster.load(arguments.cluster)
        options = {
            "cluster": cluster,
            "size_bytes": parse_size(arguments.size),
            "codec": _codec(arguments.codec, arguments.dtype, cluster),
            "dtype": arguments.dtype,
            "root": arguments.root,
            "chunk_bytes": parse_size(arguments.chunk) if arguments.chunk else None,
        }
        if arguments.algorithms == "all":
            rows, missing = schedules.simulate_all(arguments.op, **options)
        else:
            names = arguments.algorithms.split(",")
            rows, missing = (
                [schedules.simulate(arguments.op, name, **options) for name in names],
                {},
            )
        if arguments.json:
            found = [dataclasses.asdict(row) | {"link_bytes": row.link_bytes} for row in rows]
            print(json.dumps({"op": arguments.op, "predictions": found, "missing": missing}))
            return 0
        print("\n".join(_predictions(rows)))
        for name, why in missing.items():
            print(f"left out: {name}: {why}")
        return 0


def _codec(spec: str, dtype: str, cluster: _cluster.Cluster) -> str | dict[str, Any]:
    """The codec for `simulate`: its name if the profile has it, else rates measured now."""
    if spec == "raw" or spec in cluster.codecs:
        return spec
    found = profile.here(spec, dtype)
    rates = ", ".join(
        f"{name} {found[f'{name}_bytes_per_second'] / 1e9:.1f} GB/s"
        for name in ("encode", "decode", "merge")
    )
    print(
        f"{spec}: the profile has no rates; measured on a core of this machine for Gaussian "
        f"{dtype}: ratio {found['ratio']:.2f}, {rates}",
        file=sys.stderr,
    )
    return found


def _predictions(rows: list[schedules.Prediction]) -> list[str]:
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
    return terminal.lines(lines, "<>>><")


class Plan:
    """Compares two files of plans (docs/planner.md)."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The command's arguments."""
        what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
        summary = (
            "Prints a line for each call that one file lacks (-, +), or plans differently (!)."
        )
        diff = what.add_parser("diff", help=summary, description=summary)
        diff.add_argument("before", metavar="A", help="a file that jaxccomp.plan has saved")
        diff.add_argument("after", metavar="B", help="another such file")

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Prints the differences; returns 0 if there are none, else 1."""
        found = _plans.diff(*map(_plans.load, (arguments.before, arguments.after)))
        if found:
            print(found)
        return int(bool(found))


class Trace:
    """Merges the traces of all ranks into one (docs/observing.md)."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The command's arguments."""
        what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
        summary = "Writes the traces of all ranks as one, for ui.perfetto.dev, on one clock."
        merge = what.add_parser("merge", help=summary, description=summary)
        merge.add_argument("output", metavar="OUT", help="the file to write; it must not exist")
        merge.add_argument(
            "traces", metavar="IN", nargs="+", help="a file that Timeline.save has written"
        )

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Merges, and prints the clock offsets with their uncertainty."""
        print(traces.merge(arguments.output, *arguments.traces))
        return 0


class Flight:
    """Says which rank waits for which, from files of the flight recorder (docs/debugging.md)."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The command's arguments."""
        parser.add_argument(
            "folder", metavar="FOLDER", help="the folder that the option flight_folder has named"
        )

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Prints the report."""
        print(_flight.report(_flight.read_folder(arguments.folder)))
        return 0

"""Compares jaxccomp with the collectives of MPI libraries between hosts with slow links.

    python -m jaxccomp.bench.testbed.compare --hosts 4 --link 1gbit --size 64MiB \
        --ops bcast,allreduce,alltoall --python openmpi=PATH

Every contender is started anew for each operation and round, one after the other. The first round
tries every setting of a contender; the fastest goes on into the other rounds. The floor of a row is
the time that its own bytes need on the busiest link at the speed of a TCP stream, measured in the
same run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence

from jaxccomp import errors
from jaxccomp.bench.testbed import __main__ as command_line
from jaxccomp.bench.testbed import collectives, launchers, settings
from jaxccomp.bench.testbed.bed import Testbed

_PROGRAM = "python -m jaxccomp.bench.testbed.compare"
_WORKER = str(pathlib.Path(collectives.__file__))
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclasses.dataclass
class Row:
    """One operation, contender and setting, and what was measured of it."""

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
    def seconds(self) -> float:
        """The median over all calls; without any, more than any other's."""
        return statistics.median(self.calls) if self.calls else float("inf")


def rows(given: argparse.Namespace, pythons: dict[str, str]) -> list[Row]:
    """Everything to measure, operation by operation."""
    table = []
    for op in given.ops:
        for mpi, python in pythons.items():
            for name, env in settings.CANDIDATES[mpi][op]:
                table.append(Row(op, mpi, name, python, ("mpi",), env))
        for codec in given.codec:
            algorithm = given.algorithm.get(op, "auto")
            arguments = ("jaxccomp", "--codec", codec, "--algorithm", algorithm)
            name = f"jaxccomp {codec}"
            table.append(Row(op, name, algorithm, sys.executable, arguments, {}))
    return table


def best(table: Iterable[Row]) -> list[Row]:
    """Of each operation and contender the fastest setting."""
    found: dict[tuple[str, str], Row] = {}
    for row in table:
        key = row.op, row.contender
        if key not in found or row.seconds < found[key].seconds:
            found[key] = row
    return list(found.values())


def measure(bed: Testbed, row: Row, given: argparse.Namespace) -> None:
    """One launch of a row's worker; its calls are added to the row's."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out.jsonl")
        script = ["-m", collectives.__name__] if row.arguments[0] == "jaxccomp" else [_WORKER]
        program = [row.python, "-P", *script, *row.arguments, "--ops", row.op, "--out", str(out)]
        program += ["--bytes", str(given.size), "--calls", str(given.calls)]
        program += ["--input", given.input, "--dtype", given.dtype]
        done = bed.run(
            program, python=row.python, env=row.env, timeout_seconds=given.timeout, capture=True
        )
        lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    result = json.loads(lines[0]) if lines else {}
    if done.returncode or "each_seconds" not in result:
        said = [line for line in done.stdout.splitlines() if "rror" in line]
        row.error = result.get("error") or f"exit status {done.returncode}: {(said or [''])[-1]}"
        return
    row.calls += result["each_seconds"]
    row.wire_bytes = result["wire_bytes"]


def run(given: argparse.Namespace, pythons: dict[str, str]) -> tuple[list[Row], float]:
    """Measures everything.

    Returns:
      The rows, and bytes per second of a TCP stream (the median before, between and after).
    """
    table, streams = rows(given, pythons), []
    with Testbed(given.hosts, given.link) as bed:
        turn = table
        for number in range(given.rounds):
            streams += bed.measure_goodput().values()
            for row in turn:
                print(
                    f"round {number + 1} of {given.rounds}: {row.op}, {row.contender}, "
                    f"{row.setting}",
                    file=sys.stderr,
                    flush=True,
                )
                measure(bed, row, given)
            turn = [row for row in best(table) if not row.error]
        streams += bed.measure_goodput().values()
    return table, statistics.median(streams)


def report(table: Sequence[Row], goodput: float, given: argparse.Namespace) -> str:
    """The best of each contender as a Markdown table, and what failed."""
    lines = [
        f"{given.hosts} hosts, {given.link} each, {given.size / (1 << 20):g} MiB per rank, a TCP "
        f"stream carries {goodput / 1e6:.1f} MB/s",
        "",
        "| operation | contender | setting | time | on the wire | of its floor |",
        "|---|---|---|---:|---:|---:|",
    ]
    for row in best(table):
        cells = ["failed", "", ""]
        if row.calls:
            floor = row.wire_bytes / goodput
            cells = [f"{row.seconds:.3f} s", f"{row.wire_bytes / (1 << 20):.1f} MiB"]
            cells.append(f"{row.seconds / floor:.2f} x" if floor else "")
        lines.append("| " + " | ".join([row.op, row.contender, row.setting, *cells]) + " |")
    lines += [f"{r.op}, {r.contender}, {r.setting}: {r.error}" for r in table if r.error]
    return "\n".join(lines)


def write(table: Sequence[Row], goodput: float, given: argparse.Namespace, path: str) -> None:
    """Writes a line of JSON for each row, also those that were not the best."""
    with open(path, "w", encoding="utf-8") as file:
        for row in table:
            line = {
                "op": row.op,
                "size": given.size,
                "contender": row.contender,
                "setting": row.setting,
                "hosts": given.hosts,
                "link": given.link,
                "input": pathlib.Path(given.input).name,
                "seconds": round(row.seconds, 5) if row.calls else None,
                "calls": len(row.calls),
                "wire_bytes": row.wire_bytes or None,
                "goodput_GBps": round(goodput / 1e9, 5),
            }
            print(json.dumps(line | ({"error": row.error} if row.error else {})), file=file)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.

    Returns:
      The exit status: 1 when a contender failed, 2 when there is something to correct.
    """
    given = _parser().parse_args(arguments)
    command_line.exit_on_signals()
    try:
        _check(given)
        table, goodput = run(given, _pythons(given.python))
    except errors.JaxccompError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(report(table, goodput, given))
    if given.json:
        write(table, goodput, given, given.json)
    return int(any(row.error for row in table))


def _check(given: argparse.Namespace) -> None:
    number, unit = given.size[:-3], given.size[-3:]
    if unit not in _UNITS or not number.isdigit() or int(number) == 0:
        raise errors.InvalidArgumentError(f"--size reads like 64MiB or 1GiB, not {given.size!r}.")
    given.size = int(number) * _UNITS[unit]
    given.ops, given.codec = given.ops.split(","), given.codec.split(",")
    given.algorithm = dict(each.partition("=")[::2] for each in given.algorithm)
    for op in (*given.ops, *given.algorithm):
        if op not in collectives.OPERATIONS:
            raise errors.unknown("operation", op, collectives.OPERATIONS)
    if given.rounds < 1 or given.calls < 1:
        raise errors.InvalidArgumentError("--rounds and --calls must be at least 1.")
    if given.input != "random" and not pathlib.Path(given.input).is_file():
        raise errors.InvalidArgumentError(
            f"--input takes random or a .npy file; there is no file {given.input!r}."
        )


def _pythons(given: Sequence[str]) -> dict[str, str]:
    pythons = {launchers.find(None, sys.executable): sys.executable}
    for text in given:
        mpi, _, path = text.partition("=")
        pythons[launchers.find(mpi, path)] = path
    return pythons


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--hosts", type=int, default=4, help="2 to 8 (default: %(default)s)")
    add("--link", default="1gbit", help="100mbit to 5gbit (default: %(default)s)")
    add("--size", default="64MiB", help="bytes of each rank (default: %(default)s)")
    add("--ops", default="bcast,allreduce,alltoall", help=f"of {collectives.OPERATIONS}")
    add("--rounds", type=int, default=2, help="default: %(default)s")
    add("--calls", type=int, default=3, help="in each round (default: %(default)s)")
    add("--codec", default="raw,lossless", help="of jaxccomp (default: %(default)s)")
    add("--algorithm", action="append", default=[], metavar="OP=NAME", help="of jaxccomp")
    add("--input", default="random", metavar="random|FILE.npy", help="default: %(default)s")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="of random values")
    add("--python", action="append", default=[], metavar="MPI=PATH", help="for another MPI")
    add("--timeout", type=float, default=120, metavar="SECONDS", help="for each launch")
    add("--json", metavar="FILE", help="also write all measurements there")
    return parser


if __name__ == "__main__":
    sys.exit(main())

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
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp.bench.testbed import __main__ as command_line
from jaxccomp.bench.testbed import collectives, launchers, results, settings
from jaxccomp.bench.testbed.bed import Testbed
from jaxccomp.bench.testbed.results import Row

_PROGRAM = "python -m jaxccomp.bench.testbed.compare"
_WORKER = str(pathlib.Path(collectives.__file__))
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def rows(given: argparse.Namespace, pythons: dict[str, str]) -> list[Row]:
    """Everything to measure, operation by operation."""
    table, own = [], next(iter(pythons))  # first this interpreter's, which jaxccomp runs over
    for op in given.ops:
        for mpi, python in pythons.items():
            for name, env in settings.CANDIDATES[mpi][op]:
                table.append(Row(op, mpi, name, python, ("mpi",), env))
        for codec in given.codec:
            algorithm = given.algorithm.get(op, "auto")
            arguments = ("jaxccomp", "--codec", codec, "--algorithm", algorithm)
            name = f"jaxccomp {codec}, {own}"
            table.append(Row(op, name, algorithm, sys.executable, arguments, {}))
    return table


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


def run(given: argparse.Namespace, pythons: dict[str, str]) -> list[dict[str, Any]]:
    """Measures everything.

    Returns:
      A line for each row, also for those that were not the best. The TCP stream's rate in all of
      them is the median of streams before, between and after.
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
            turn = _fastest(table)
        streams += bed.measure_goodput().values()
    conditions = {"size": given.size, "hosts": given.hosts, "link": given.link}
    conditions["input"] = pathlib.Path(given.input).name
    return [row.line(statistics.median(streams), **conditions) for row in table]


def _fastest(table: Sequence[Row]) -> list[Row]:
    """Of each operation and contender the row to go on with."""
    found: dict[tuple[str, str], Row] = {}
    for row in table:
        other = found.get((row.op, row.contender))
        if row.seconds and not row.error and (not other or row.seconds < other.seconds):
            found[row.op, row.contender] = row
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.

    Returns:
      The exit status: 1 when a contender failed, 2 when there is something to correct.
    """
    given = _parser().parse_args(arguments)
    command_line.exit_on_signals()
    try:
        if given.table:
            with open(given.table, encoding="utf-8") as file:
                print(results.markdown(results.read(file)))
            return 0
        _check(given)
        lines = run(given, _pythons(given.python))
    except (errors.JaxccompError, OSError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(results.markdown(lines))
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return int(any("error" in line for line in lines))


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
    add("--table", metavar="FILE", help="measure nothing; print such a file as a Markdown table")
    return parser


if __name__ == "__main__":
    sys.exit(main())

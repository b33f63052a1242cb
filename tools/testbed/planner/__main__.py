"""Compares a profile's choices with all alternatives: times, and the errors of predicted costs.

    python -m testbed.planner --json docs/results/planner.jsonl
    python -m testbed.planner --table docs/results/planner.jsonl

At each place (hosts with links, or ranks of one host), ``python -m jaxccomp tune links`` measures a
profile. Then each operation runs with the algorithm and codec that the profile chooses, and with
every algorithm, raw and lossless, in turns; after some turns only plans near the fastest continue.
The line of a point is added to the file as soon as it is measured. The same command resumes an
interrupted run, with the profiles in the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from jaxccomp import errors, schedules
from jaxccomp._native import json_files, terminal
from jaxccomp.bench import machine
from testbed import inputs, scenario, tuned, workers
from testbed.bed import Testbed
from testbed.planner import points, report
from testbed.planner.points import Place, Point

# Compute on one thread per rank: all hosts share the machine's cores.
_ENVIRONMENT = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
# Time for a launch to start, beyond the time of its measurements.
_STARTING_SECONDS = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status of `scenario.run`."""
    parser = argparse.ArgumentParser(prog="python -m testbed.planner", description=__doc__)
    add = parser.add_argument
    add("--hosts", type=int, nargs="+", default=points.HOSTS, help="2 to 8 (%(default)s)")
    links = "100mbit to 5gbit, or memory: ranks of one host (%(default)s)"
    add("--links", nargs="+", default=points.LINKS, help=links)
    add("--ops", nargs="+", default=tuple(points.OPERATIONS), choices=points.OPERATIONS)
    add("--sizes", nargs="+", default=points.SIZES, help="bytes of each rank (%(default)s)")
    add("--turns", type=int, default=6, help="turns of calls at each point (%(default)s)")
    within = "seconds; begin no point that may end later (%(default)s)"
    add("--within", type=float, default=1800.0, metavar="S", help=within)
    add("--input", default="random", help="random, trained, a folder, .npy or .safetensors file")
    return scenario.run(parser, _measure, table=report.table, arguments=arguments)


def _measure(given: argparse.Namespace) -> None:
    if given.turns < 1 or not given.within > 0:
        raise errors.InvalidArgumentError("--turns must be at least 1, --within positive.")
    sizes = sorted(set(map(terminal.parse_size, given.sizes)))
    wanted = {
        place: points.points(place, dict.fromkeys(given.ops), sizes)
        for place in points.places(given.hosts, given.links)
    }
    until = time.monotonic() + given.within
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = given.json or folder / "lines.jsonl"
        _begin(path, pathlib.Path(given.input).name)
        missing = {place: _missing(path, place, those) for place, those in wanted.items()}
        if any(missing.values()):
            values = inputs.prepare(given.input, "", folder, 2)
            kinds = dict.fromkeys(points.OPERATIONS[op] for op in given.ops)
            if lacking := set(kinds) - set(values):
                raise errors.InvalidArgumentError(
                    f"--input {given.input!r} has no values of {errors.listed(lacking)}; name one "
                    "that has, or omit the operations that need them (--ops)."
                )
            run = _Run(given, path, folder, {kind: values[kind].file for kind in kinds})
            places = [place for place, those in missing.items() if those]
            for number, place in enumerate(places):
                # Share the remaining time equally among the remaining places.
                share = (until - time.monotonic()) / (len(places) - number)
                run.measure(place, missing[place], time.monotonic() + share)
        print(report.table(scenario.read(path)))
        for place, those in wanted.items():
            if left := _missing(path, place, those):
                names = ", ".join(f"{point.op} of {point.size} bytes" for point in left)
                scenario.say(f"no time for: {place.hosts} hosts, {place.link}: {names}")


class _Run:
    """Measures one place after the other, and appends lines to a file.

    Args:
      given: the options.
      path: the file of results.
      folder: the folder for profiles.
      files: files of values, by their kind.
    """

    def __init__(
        self,
        given: argparse.Namespace,
        path: pathlib.Path,
        folder: pathlib.Path,
        files: dict[str, str],
    ):
        self._given, self._path, self._folder, self._files = given, path, folder, files

    def measure(self, place: Place, missing: list[Point], until: float) -> None:
        """Measures the ``missing`` points of a place until the time ``until``."""
        with place.opened() as where:
            profile = self._profile(place, where)
            within = until - time.monotonic()
            if within <= 0:
                return
            scenario.say(
                f"{place.hosts} hosts, {place.link}: {len(missing)} points, {within:.0f} s"
            )
            program = ["-P", "-m", "testbed.planner.worker", "--points", points.to_text(missing)]
            program += ["--inputs", json.dumps(self._files), "--turns", str(self._given.turns)]
            program += ["--place", json.dumps(dataclasses.asdict(place))]
            program += ["--within", str(within), "--out", str(self._path.resolve())]
            workers.run(
                program,
                where,
                env=_ENVIRONMENT | {"JAXCCOMP_PROFILE": str(profile)},
                timeout_seconds=within + _STARTING_SECONDS,
            )

    def _profile(self, place: Place, where: Testbed | int) -> pathlib.Path:
        """The file's profile of a place; measures it if there is none."""
        path = self._folder / f"{place.hosts}-{place.link}.json"
        for line in scenario.read(self._path):
            if "profile" in line and points.place_of(line) == place:
                schedules.write_profile(path, line["profile"])
                return path
        scenario.say(f"{place.hosts} hosts, {place.link}: measuring the profile")
        tuned.profile(where, path, self._files.values(), env=_ENVIRONMENT)
        _append(
            self._path, dataclasses.asdict(place) | {"profile": json.loads(path.read_text("utf-8"))}
        )
        return path


def _begin(path: pathlib.Path, source: str) -> None:
    """Starts the file, or checks that it can be continued."""
    first = json.dumps({"facts": machine.facts() | {"input": source}}) + "\n"
    if not path.exists():
        path.write_text(first, encoding="utf-8")
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    # A process that was killed while writing leaves a partial line.
    whole = lines if not lines or lines[-1].endswith("\n") else lines[:-1]
    if whole[:1] != [first]:
        raise errors.InvalidArgumentError(
            f"--json: {path} cannot be continued: it was not measured on this machine with this "
            f"release and {source} values. Name another file."
        )
    if whole != lines:
        json_files.write(path, "".join(whole).encode())


def _append(path: pathlib.Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _missing(path: pathlib.Path, place: Place, wanted: list[Point]) -> list[Point]:
    """The points of a place that the file does not have."""
    done = {
        Point(line["op"], line["size"])
        for line in report.points_of(scenario.read(path))
        if points.place_of(line) == place
    }
    return [point for point in wanted if point not in done]


if __name__ == "__main__":
    sys.exit(main())

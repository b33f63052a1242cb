"""Compares jaxccomp with the collectives of MPI libraries between hosts with slow links.

    python -m testbed.compare --input trained --json FILE \
        --python openmpi=PATH --python mpi4jax=PATH

Every contender is started anew for each case and round, one after the other. The first round tries
every setting of a peer and checks all results; the fastest settings, and the default one, go on
into the other rounds. The floor of a row is the time that its own bytes need on the busiest link at
the speed of a TCP stream, measured in the same run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._bootstrap import ucx
from jaxccomp._native import json_files
from testbed import __main__ as command_line
from testbed import collectives, inputs, results, turns
from testbed.bed import Testbed
from testbed.cases import SCENARIOS, Scenario

_PROGRAM = "python -m testbed.compare"
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def run(
    given: argparse.Namespace, scenarios: Mapping[str, Scenario], pythons: turns.Pythons
) -> list[dict[str, Any]]:
    """Measures everything.

    Returns:
      A line for each row, also for those that were not the best.
    """
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        values = inputs.prepare(given.input, given.previous, pathlib.Path(folder), given.size)
        for name, scenario in scenarios.items():
            for kind in {case.values for case in scenario.cases} - set(values):
                _say(f"left out of {name}: {kind}, of which {given.input} has nothing")
            lines += _run_one(given, name, scenario, values, pythons)
    return results.with_ratios(lines)


def _run_one(
    given: argparse.Namespace,
    name: str,
    scenario: Scenario,
    values: Mapping[str, inputs.Input],
    pythons: turns.Pythons,
) -> list[dict[str, Any]]:
    cases = [case for case in scenario.cases if case.values in values]
    turn = table = turns.rows(cases, scenario, pythons)
    streams: list[float] = []
    with Testbed(scenario.hosts, scenario.link) as bed:
        for number in range(given.rounds):
            streams += bed.measure_goodput().values()
            for row in turn:
                what = f"{row.case.op} of {row.case.values}, {row.contender}, {row.setting}"
                _say(f"{name}, round {number + 1} of {given.rounds}: {what}")
                turns.measure(bed, row, given, values[row.case.values])
            turn = turns.next_turn(table)
        streams += bed.measure_goodput().values()
    conditions = {
        "scenario": name,
        "size": given.size,
        "hosts": scenario.hosts,
        "link": scenario.link,
        "source": pathlib.Path(given.input).name,
    }
    # The stream's rate before, between and after.
    return [row.line(statistics.median(streams), **conditions) for row in table]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.

    Returns:
      The exit status: 1 when a contender failed, 2 when there is something to correct.
    """
    given = _parser().parse_args(arguments)
    command_line.exit_on_signals()
    try:
        if given.table:
            print(results.markdown(json_files.lines(given.table)))
            return 0
        scenarios = _check(given)
        pythons, missing = turns.find_pythons(given.python)
        if missing and any(each.peers for each in scenarios.values()):
            _say(f"left out: mpi4jax; {missing}")
        lines = run(given, scenarios, pythons)
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


def _check(given: argparse.Namespace) -> dict[str, Scenario]:
    """The scenarios as the options change them; ``given.size`` becomes a number."""
    number, unit = given.size[:-3], given.size[-3:]
    if unit not in _UNITS or not number.isdigit() or int(number) == 0:
        raise errors.InvalidArgumentError(f"--size reads like 64MiB or 1GiB, not {given.size!r}.")
    given.size = int(number) * _UNITS[unit]
    if given.rounds < 1 or given.calls < 1 or given.warmups < 0:
        raise errors.InvalidArgumentError(
            "--rounds and --calls must be at least 1, --warmups at least 0."
        )
    ops = given.ops.split(",") if given.ops else collectives.OPERATIONS
    for op in ops:
        if op not in collectives.OPERATIONS:
            raise errors.unknown("operation", op, collectives.OPERATIONS)
    chosen = SCENARIOS if given.scenario == "all" else {given.scenario: SCENARIOS[given.scenario]}
    transports = {case.transport for each in chosen.values() for case in each.cases}
    if "ucx" in transports and (why := ucx.why_missing()):
        _say(f"left out: what UCX carries; {why}")
        transports.remove("ucx")
    return {
        name: dataclasses.replace(
            scenario,
            hosts=given.hosts or scenario.hosts,
            link=given.link or scenario.link,
            cases=tuple(
                case for case in scenario.cases if case.op in ops and case.transport in transports
            ),
        )
        for name, scenario in chosen.items()
    }


def _parser() -> argparse.ArgumentParser:
    about = "; ".join(f"{name}: {each.about}" for name, each in SCENARIOS.items())
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--scenario", default="all", choices=(*SCENARIOS, "all"), help=about)
    add("--hosts", type=int, help="2 to 8 (default: the scenario's)")
    add("--link", help="100mbit to 5gbit (default: the scenario's)")
    add("--size", default="64MiB", help="bytes of each rank (default: %(default)s)")
    add("--ops", help="only these, separated by commas")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("--calls", type=int, default=5, help="timed, in each round (default: %(default)s)")
    add("--warmups", type=int, default=6, help="calls before them (default: %(default)s)")
    add("--input", default="random", help="random, trained, a folder, .npy or .safetensors file")
    add("--previous", default="", metavar="FILE", help="an earlier state of --input, a file")
    add("--python", action="append", default=[], metavar="NAME=PATH", help="an MPI's, or mpi4jax's")
    add("--timeout", type=float, default=120, metavar="SECONDS", help="for each launch")
    add("--json", metavar="FILE", help="also write all measurements there")
    add("--table", metavar="FILE", help="measure nothing; print such a file as a Markdown table")
    return parser


if __name__ == "__main__":
    sys.exit(main())

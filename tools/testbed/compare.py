"""Compares jaxccomp with the collectives of MPI libraries between hosts with slow links.

    python -m testbed.compare --input trained --json FILE \
        --python openmpi=PATH --python mpi4jax=PATH

Each case and round starts a new process of every contender, one after the other. The first round
tries every setting of a peer and checks all results; the other rounds run the fastest settings and
the default one. The floor of a row is the time of its bytes on the busiest link at the rate of a
TCP stream, which is measured in the same run.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._native import terminal
from jaxccomp._runtime import ucx
from testbed import collectives, inputs, results, scenario, turns
from testbed.bed import Testbed
from testbed.cases import SCENARIOS, Scenario


def run(
    given: argparse.Namespace, scenarios: Mapping[str, Scenario], pythons: turns.Pythons
) -> list[dict[str, Any]]:
    """Measures everything.

    Returns:
      A line for each row, also for settings that were not the fastest.
    """
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        values = inputs.prepare(given.input, given.previous, pathlib.Path(folder), given.size)
        for name, each in scenarios.items():
            for kind in {case.values for case in each.cases} - set(values):
                scenario.say(f"left out of {name}: {kind}; {given.input} has no such values")
            lines += _run_one(given, name, each, values, pythons)
    return results.with_ratios(lines)


def _run_one(
    given: argparse.Namespace,
    name: str,
    what: Scenario,
    values: Mapping[str, inputs.Input],
    pythons: turns.Pythons,
) -> list[dict[str, Any]]:
    cases = [case for case in what.cases if case.values in values]
    turn = table = turns.rows(cases, what, pythons)
    streams: list[float] = []
    with Testbed(what.hosts, what.link) as bed:
        for number in range(given.rounds):
            streams += bed.measure_goodput().values()
            for row in turn:
                which = f"{row.case.op} of {row.case.values}, {row.contender}, {row.setting}"
                scenario.say(f"{name}, round {number + 1} of {given.rounds}: {which}")
                turns.measure(bed, row, given, values[row.case.values])
            turn = turns.next_turn(table)
        streams += bed.measure_goodput().values()
    conditions = {
        "scenario": name,
        "size": given.size,
        "hosts": what.hosts,
        "link": what.link,
        "source": pathlib.Path(given.input).name,
    }
    # Take the median of the stream's rates before, between and after the rounds.
    return [row.line(statistics.median(streams), **conditions) for row in table]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status of `scenario.run`."""
    return scenario.run(_parser(), _measure, table=results.markdown, arguments=arguments)


def _measure(given: argparse.Namespace) -> list[scenario.Line]:
    scenarios = _check(given)
    pythons, missing = turns.find_pythons(given.python)
    if missing and any(each.peers for each in scenarios.values()):
        scenario.say(f"left out: mpi4jax; {missing}")
    lines = run(given, scenarios, pythons)
    print(results.markdown(lines))
    return lines


def _check(given: argparse.Namespace) -> dict[str, Scenario]:
    """The chosen scenarios with the options applied; parses ``given.size`` in place."""
    given.size = terminal.parse_size(given.size)
    if given.rounds < 1 or given.calls < 1 or given.warmups < 0:
        raise errors.InvalidArgumentError(
            "--rounds and --calls must be at least 1, --warmups at least 0."
        )
    ops = terminal.names(given.ops, "operation", collectives.OPERATIONS)
    chosen = SCENARIOS if given.scenario == "all" else {given.scenario: SCENARIOS[given.scenario]}
    transports = {case.transport for each in chosen.values() for case in each.cases}
    if "ucx" in transports and (why := ucx.why_missing()):
        scenario.say(f"left out: cases over UCX; {why}")
        transports.remove("ucx")
    return {
        name: dataclasses.replace(
            each,
            hosts=given.hosts or each.hosts,
            link=given.link or each.link,
            cases=tuple(
                case for case in each.cases if case.op in ops and case.transport in transports
            ),
        )
        for name, each in chosen.items()
    }


def _parser() -> argparse.ArgumentParser:
    about = "; ".join(f"{name}: {each.about}" for name, each in SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="python -m testbed.compare", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--scenario", default="all", choices=(*SCENARIOS, "all"), help=about)
    add("--hosts", type=int, help="2 to 8 (default: the scenario's)")
    add("--link", help="100mbit to 5gbit (default: the scenario's)")
    add("--size", default="64MiB", help="bytes of each rank (default: %(default)s)")
    add("--ops", default=",".join(collectives.OPERATIONS), help="default: %(default)s")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("--calls", type=int, default=5, help="timed calls in each round (default: %(default)s)")
    add("--warmups", type=int, default=6, help="untimed calls before (default: %(default)s)")
    add("--input", default="random", help="random, trained, a folder, .npy or .safetensors file")
    add("--previous", default="", metavar="FILE", help="a file with an earlier state of --input")
    python = "the interpreter of an environment with this MPI, or with mpi4jax"
    add("--python", action="append", default=[], metavar="NAME=PATH", help=python)
    add("--timeout", type=float, default=120, metavar="SECONDS", help="limit of each launch")
    return parser


if __name__ == "__main__":
    sys.exit(main())

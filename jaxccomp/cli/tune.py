"""Finds settings by measurement: processes per device, and the profile that `auto` uses."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from jaxccomp import errors
from jaxccomp._native import terminal
from jaxccomp._native.version import __version__
from jaxccomp.cli import tune_links
from jaxccomp.launch import gpus, mps, signals, tuning
from jaxccomp.launch.tuning import Plan, Result, device_name

# --- Report: a table, the best case, and JSON -----------------------------------------------------

_HEADINGS = ("", "processes", "batch", "per device", "samples/s", "lowest", "highest", "ratio")


def table(results: Sequence[Result]) -> str:
    """A row for each case, with its ratio to one process, or the reason why it was not measured."""
    base = results[0].median
    head, *lines = terminal.lines(
        [_HEADINGS, *(_cells(each, base) for each in results)], "<>>>>>>>"
    )
    for i, result in enumerate(results):
        if result.median is None:
            lines[i] += f"  not measured: {result.error.splitlines()[0]}"
    return "\n".join([head, *lines])


def _cells(result: Result, base: float | None) -> tuple[str, ...]:
    case = result.case
    batch = str(case.batch) if case.replicas == 1 else f"{case.replicas} x {case.batch}"
    cells = (case.name, str(case.processes), batch, str(case.device_batch))
    if result.median is None:
        return cells
    rates = (result.median, min(result.rounds), max(result.rounds))
    ratio = f"{result.median / base:.2f}" if base else "-"
    return (*cells, *(f"{rate:.1f}" for rate in rates), ratio)


def best(results: Sequence[Result]) -> Result | None:
    """The fastest case with the same batch as one process; None if nothing was measured."""
    same = results[0].case.device_batch
    measured = [each for each in results if each.median and each.case.device_batch == same]
    return max(measured, key=lambda each: each.median or 0.0, default=None)


def verdict(results: Sequence[Result]) -> str:
    """A sentence with the best case and its certainty."""
    base, winner = results[0], best(results)
    if winner is None or winner.median is None:
        return "nothing could be measured"
    if base.median is None:
        return f"best: {winner.case.name}; there is no measurement of one process to compare with"
    if winner is base:
        text = "best: 1 process; nothing with the same batch is faster"
    else:
        text = f"best: {winner.case.name}, {winner.median / base.median:.2f} times 1 process"
        if len(winner.rounds) == 1:
            text += ", by a single round: measure more"
        elif min(winner.rounds) <= max(base.rounds):
            text += ", but their ranges overlap: measure more rounds, or take them as equal"
    larger = [each for each in results if each.case.device_batch > base.case.device_batch]
    for each in larger:
        if each.median and each.median > winner.median:
            text += (
                f". Faster still ({each.median / base.median:.2f}), but another training: "
                f"{each.case.name}"
            )
    return text


def left_out(results: Sequence[Result]) -> str:
    """The cases skipped for lack of time; empty if there are none."""
    said = [
        f"{each.case.name} ({each.left_out} more round(s))" if each.rounds else each.case.name
        for each in results
        if each.left_out
    ]
    return f"left out for lack of time (--within): {', '.join(said)}" if said else ""


def write(plan: Plan, results: Sequence[Result], version: str, file: TextIO) -> None:
    """Writes all results as one JSON object; ``version`` is the package's."""
    winner = best(results)
    values = {
        "jaxccomp": version,
        "device": device_name(plan),
        "batch": plan.batch,
        "best": winner and winner.case.name,
        "verdict": verdict(results),
        "left_out": left_out(results),
        "cases": [
            {
                "name": result.case.name,
                "processes": result.case.processes,
                "batch": result.case.batch,
                "replicas": result.case.replicas,
                "mps": result.case.mps,
                "device_batch": result.case.device_batch,
                "samples_per_second": result.median,
                "rounds": result.rounds,
                "rounds_left_out": result.left_out,
                "ratio": result.median / results[0].median
                if result.median and results[0].median
                else None,
                **({"not_measured": result.error} if result.error else {}),
            }
            for result in results
        ],
    }
    json.dump(values, file, indent=2)
    file.write("\n")


# --- Command --------------------------------------------------------------------------------------

_OF_LINKS = {"links": tune_links.run, "transport": tune_links.run_transport}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    summary = (
        "Runs a program with different numbers of processes on a device, at the same batch, and "
        "compares samples per second. The program calls "
        "jaxccomp.launch.report_throughput(samples_per_second) on every rank. Its batch is in the "
        f"variable {tuning.BATCH}, and stands for {{batch}} in its arguments; so does "
        f"{tuning.REPLICAS} for {{replicas}}, the copies of the network in one process."
    )
    _add_ranks_per_gpu(what.add_parser("ranks-per-gpu", help=summary, description=summary))
    summary = tune_links.__doc__
    tune_links.add_arguments(what.add_parser("links", help=summary, description=summary))
    summary = (
        "Chooses the faster of two profiles that the same ranks measured over MPI and over UCX."
    )
    tune_links.add_transport_arguments(
        what.add_parser("transport", help=summary, description=summary)
    )


def _add_ranks_per_gpu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks-per-gpu", default="1,2,4", metavar="K,K", help="default: %(default)s"
    )
    parser.add_argument(
        "--batch",
        type=int,
        default=128,
        help="batch of a device; each process gets 1/K of it (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        choices=("gpu", "cpu"),
        default="gpu",
        help="cpu: use this machine's CPU as the device (default: %(default)s)",
    )
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (default: %(default)s)")
    parser.add_argument(
        "--vmap", action="store_true", help=f"the program supports {tuning.REPLICAS}: measure that"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="limit of each run (%(default)s)"
    )
    parser.add_argument(
        "--within",
        type=float,
        metavar="S",
        help="limit of all runs together; skipped runs are listed (default: no limit)",
    )
    parser.add_argument(
        "--bind-cores", choices=("auto", "none"), default="auto", help="default: %(default)s"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the measurements there")
    parser.add_argument("script", help="a Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")


def run(arguments: argparse.Namespace) -> int:
    """Measures, and prints the table; returns 1 if nothing could be measured."""
    if arguments.what in _OF_LINKS:
        return _OF_LINKS[arguments.what](arguments)
    plan = _plan(arguments)
    cases = plan.cases()
    _say(f"{len(cases)} cases on {tuning.device_name(plan)}, {plan.rounds} rounds")
    with signals.handled(signals.end):
        results = tuning.measure(plan, _say)
    print(table(results))
    for result in results:
        if len(result.error.splitlines()) > 1:
            print(f"\n{result.case.name}: {result.error}")
    print(f"\n{verdict(results)}")
    if missing := left_out(results):
        print(missing)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            write(plan, results, __version__, file)
    return int(best(results) is None)


def _plan(arguments: argparse.Namespace) -> tuning.Plan:
    if not os.path.isfile(arguments.script):
        raise errors.InvalidArgumentError(f"there is no file {arguments.script!r} to run.")
    folder = os.path.dirname(os.path.abspath(arguments.json or "."))
    if not os.path.isdir(folder):
        raise errors.InvalidArgumentError(f"--json: there is no folder {folder!r}; make it first.")
    for option in ("batch", "gpus", "rounds", "timeout", "within"):
        given = getattr(arguments, option)
        if given is not None and given < 1:
            raise errors.InvalidArgumentError(f"--{option} must be at least 1.")
    used, no_mps = (), "no GPU"
    if arguments.device == "gpu":
        found = gpus.find()
        if not found.gpus:
            raise errors.InvalidArgumentError(
                f"there is no GPU here: {found.how}. `--device cpu` uses the machine's CPU as the "
                "device, and finds the best number of processes on it."
            )
        if arguments.gpus > len(found.gpus):
            raise errors.InvalidArgumentError(
                f"--gpus {arguments.gpus}: there are {len(found.gpus)} ({found.how})."
            )
        used, no_mps = found.gpus[: arguments.gpus], mps.why_not()
    program = [arguments.script, *arguments.arguments]
    return tuning.Plan(
        program=program,
        counts=_counts(arguments.ranks_per_gpu),
        batch=arguments.batch,
        gpus=used,
        vmap=arguments.vmap or any("{replicas}" in each for each in program),
        no_mps=no_mps,
        rounds=arguments.rounds,
        timeout_seconds=arguments.timeout,
        within_seconds=arguments.within,
        bind_cores=arguments.bind_cores == "auto",
    )


def _counts(text: str) -> list[int]:
    parts = [each.strip() for each in text.split(",")]
    if not all(each.isdigit() and int(each) > 0 for each in parts):
        raise errors.InvalidArgumentError(
            f"--ranks-per-gpu takes positive numbers, such as 1,2,4, not {text!r}."
        )
    return sorted({int(each) for each in parts})


def _say(text: str) -> None:
    print(f"jaxccomp tune: {text}", file=sys.stderr, flush=True)

"""Reports the results of `tuning`: a table, the best case, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from jaxccomp._native import tables
from jaxccomp.launch.tuning import Plan, Result, device_name

_HEADINGS = ("", "processes", "batch", "per device", "samples/s", "lowest", "highest", "ratio")


def table(results: Sequence[Result]) -> str:
    """A row for each case, with its ratio to one process, or the reason why it was not measured."""
    base = results[0].median
    head, *lines = tables.lines([_HEADINGS, *(_cells(each, base) for each in results)], "<>>>>>>>")
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
    return max(measured, key=lambda each: each.median, default=None)


def verdict(results: Sequence[Result]) -> str:
    """A sentence with the best case and its certainty."""
    base, winner = results[0], best(results)
    if winner is None:
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

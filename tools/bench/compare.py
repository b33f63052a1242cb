"""Runs contenders side by side and takes medians over rounds.

A round runs every contender once per operation, one after the other, so that other load on the
machine hits all contenders alike. Each round starts with a different contender, so that periodic
load does not always hit the same one. The first round tries each contender with ranks bound to
cores and with unbound ranks; the other rounds keep the faster setting.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence

from bench import contenders
from jaxccomp._native import json_files
from jaxccomp.bench import launch
from jaxccomp.launch.processes import reserved_port

OPERATIONS = (
    "bcast",
    "allreduce",
    "allgather",
    "alltoall",
    "reduce_scatter",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",
)
_WORKER = str(pathlib.Path(__file__).with_name("worker.py"))

Case = tuple[str, int]  # operation, bytes


@dataclasses.dataclass(frozen=True)
class Plan:
    """The parameters of a comparison."""

    names: tuple[str, ...]
    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: int
    rounds: int
    pythons: Mapping[str, str]  # by contender: the interpreter that runs it
    bind: str = "auto"
    timeout_seconds: float = 600.0

    def cases(self, name: str, operation: str) -> list[Case]:
        """The cases of a contender in the jobs of ``operation``."""
        contender = contenders.find(name)
        if contender.only:
            return [(each, 1024) for each in contender.only if operation == self.operations[0]]
        return [(operation, size) for size in self.sizes if operation not in contender.lacks]


@dataclasses.dataclass
class Measurement:
    """One contender, one operation, one size."""

    contender: str
    operation: str
    size_bytes: int
    rounds_us: list[float] = dataclasses.field(default_factory=list)
    bind: str = ""
    error: str = ""

    @property
    def median_us(self) -> float:
        """The median over rounds; NaN without any."""
        return statistics.median(self.rounds_us) if self.rounds_us else math.nan


Results = dict[tuple[str, str, int], Measurement]


def run(plan: Plan, tell: Callable[[str], None]) -> Results:
    """Measures everything in ``plan``; calls ``tell`` with a line before each job."""
    jobs = {
        (name, operation): plan.cases(name, operation)
        for operation in plan.operations
        for name in plan.names
        if plan.cases(name, operation)
    }
    results: Results = {
        (name, *case): Measurement(name, *case)
        for (name, _), cases in jobs.items()
        for case in cases
    }
    settings = dict.fromkeys(jobs, _settings(plan))
    for number in range(plan.rounds):
        for job in _turned(jobs, number):
            name, operation = job
            tried = {}
            for bind in settings[job]:
                place = f"round {number + 1} of {plan.rounds}"
                tell(f"{place}: {operation}, {name}, bound to {bind}")
                tried[bind] = _run_job(plan, name, jobs[job], bind)
            best = min(tried, key=lambda bind: _cost(tried[bind].values()))
            settings[job] = (best,)
            _add(results, name, best, tried[best])
    return results


def _turned(jobs: Iterable[tuple[str, str]], number: int) -> list[tuple[str, str]]:
    """The jobs grouped by operation; each group rotated to start with its ``number``-th job."""
    by_operation: dict[str, list[tuple[str, str]]] = {}
    for job in jobs:
        by_operation.setdefault(job[1], []).append(job)
    turned = []
    for group in by_operation.values():
        first = number % len(group)
        turned += group[first:] + group[:first]
    return turned


def _settings(plan: Plan) -> tuple[str, ...]:
    if plan.bind != "auto":
        return (plan.bind,)
    return ("core", "none") if plan.ranks <= (os.cpu_count() or 1) else ("none",)


def _cost(outcomes: Iterable[float | str]) -> float:
    """Mean logarithm of the times, so that each case has equal weight; a failure is infinite."""
    logs = [math.log(each) if isinstance(each, float) else math.inf for each in outcomes]
    return statistics.fmean(logs) if logs else math.inf


def _add(results: Results, name: str, bind: str, outcomes: Mapping[Case, float | str]) -> None:
    for case, outcome in outcomes.items():
        measurement = results[(name, *case)]
        measurement.bind = bind
        if isinstance(outcome, str):
            measurement.error = outcome
        else:
            measurement.rounds_us.append(outcome)


def _run_job(plan: Plan, name: str, cases: Sequence[Case], bind: str) -> dict[Case, float | str]:
    """Run one contender's job: for each case the slowest rank's median, or an error text."""
    with reserved_port() as port, tempfile.TemporaryDirectory() as folder:
        outcome = launch.run(
            plan.ranks,
            ["-P", _WORKER, name, folder, *(f"{op}:{size}" for op, size in cases)],
            python=plan.pythons[name],
            bind=bind,
            env={
                **contenders.find(name).env,
                "JAXCCOMP_BENCH_COORDINATOR": f"127.0.0.1:{port}",
            },
            timeout_seconds=plan.timeout_seconds,
        )
        files = sorted(pathlib.Path(folder).glob("*.jsonl"))
        rows = [row for path in files for row in json_files.lines(path)]
    by_case: dict[Case, list[dict]] = {}
    for row in rows:
        by_case.setdefault((row["op"], row["size_bytes"]), []).append(row)
    return {case: _slowest(by_case.get(case, []), plan.ranks, outcome) for case in cases}


def _slowest(rows: Sequence[dict], ranks: int, outcome: launch.Outcome) -> float | str:
    wrong = [row["error"] for row in rows if "error" in row]
    if wrong:
        return wrong[0]
    if len(rows) < ranks:
        lines = [line for line in outcome.output.splitlines() if "Error" in line]
        return f"{outcome.error or 'no result'}: {lines[-1].strip() if lines else 'no message'}"
    return max(float(row["median_us"]) for row in rows)

"""Runs each fault with each operation and place: no hangs, no wrong values, errors on all ranks.

    python -m stress.faults --runs 100 --places mpich --output docs/results/faults.json

Run it in the folder `tests`, with the Python of an environment with the MPI. Rows of other places
in the file are kept.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from jaxccomp.bench import launch, machine
from jaxccomp.launch import leftovers
from stress.faults import jobs, judge, record
from stress.faults.table import FAULTS, OPERATIONS, PLACES, PROCESSES, Fault

MARK = "JAXCCOMP_FAULTS_JOB"
MAX_FAILED_JOBS = 5
LEFT_SECONDS = 3.0  # time in which processes may still exit after the job


def run_cell(fault: Fault, place: str, runs: int, seed: int) -> dict[str, judge.Tally]:
    """Runs jobs until the fault has been injected ``runs`` times."""
    tallies = {each: judge.Tally() for each in OPERATIONS if each not in fault.not_for}
    done = failed = 0
    while done < runs and failed < MAX_FAILED_JOBS:
        with tempfile.TemporaryDirectory() as folder:
            mark = f"{os.getpid()}-{time.monotonic_ns()}"
            files = leftovers.SharedFiles(f"{MARK}={mark}")
            os.environ[MARK] = mark
            job = jobs.start(fault, place, done, runs - done, seed, pathlib.Path(folder))
            outcome = job.wait(files.look)
            ended_at = time.time()
            left = not leftovers.wait(_ended(f"{MARK}={mark}"), LEFT_SECONDS)
            leftovers.kill(f"{MARK}={mark}")
            lines = record.read(pathlib.Path(folder))
            if job.ends_job:
                # Devices of one process have no launcher that reports the error.
                wanted = "rank 2" if place in PROCESSES else ""
                died = judge.judge_end(fault, lines, ended_at, outcome.text, wanted, tallies)
                complete = {done} if died else set()
            else:
                complete = judge.judge(fault, lines, job.ranks, tallies)
        if not complete or outcome.hung:
            failed += 1
            for tally in tallies.values():
                tally.note("hangs", outcome.text)
        names = files.remove()
        if left or (names and (job.ends_job or not fault.ends_process)):
            for tally in tallies.values():
                tally.note("leftovers", "processes" if left else ", ".join(names))
        done = max(complete, default=done - 1) + 1
    return tallies


def _ended(mark: str) -> Callable[[], bool]:
    return lambda: not leftovers.marked(mark)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--places", nargs="+", choices=PLACES)
    parser.add_argument("--faults", nargs="+", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    mpi = "openmpi" if launch.vendor()[0] == "Open MPI" else "mpich"
    places = arguments.places or [mpi, "8 devices"]
    chosen = [fault for fault in FAULTS if fault.name in (arguments.faults or [fault.name])]
    bad = 0
    for place, fault in itertools.product(places, chosen):
        if place in PROCESSES and place != mpi:
            parser.error(f"this environment's MPI is {mpi}: run {place} with another's Python")
        begun = time.monotonic()
        if place not in PROCESSES and fault.not_on_devices:
            rows: dict[str, Any] = dict.fromkeys(OPERATIONS, {"left_out": fault.not_on_devices})
        else:
            tallies = run_cell(fault, place, arguments.runs, arguments.seed)
            rows = {operation: tally.row() for operation, tally in tallies.items()}
            rows |= {operation: {"left_out": why} for operation, why in fault.not_for.items()}
            bad += sum(not tally.is_good for tally in tallies.values())
            counts = collections.Counter[str]()
            for tally in tallies.values():
                counts += tally.counts
            print(
                f"{place}, {fault.name}: {tallies['bcast'].runs} runs in "
                f"{time.monotonic() - begun:.0f} s, {dict(counts) or 'good'}",
                flush=True,
            )
            for operation, tally in tallies.items():
                for kind, example in tally.examples.items():
                    print(f"  {operation}, {kind}: {example}", flush=True)
        if arguments.output:
            _write(arguments.output, place, fault, rows)
    return bool(bad)


def _write(path: pathlib.Path, place: str, fault: Fault, rows: dict[str, Any]) -> None:
    table = json.loads(path.read_text()) if path.exists() else {}
    table.setdefault(place, machine.facts())
    table[place].setdefault("faults", {})[fault.name] = {"deadline_seconds": fault.seconds} | rows
    path.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

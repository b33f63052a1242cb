"""Checks that the memory of an operation is not used after its end: uses x faults x places.

    python -m stress.memory --library build/.venv/libjaxccomp_mpi_tests.so --runs 100 \\
        --places mpich ucx --output docs/results/memory.json

Run it in the folder `tests`, with the Python of an environment with the MPI; UCX needs
JAXCCOMP_LIBUCP. tests/cpp/memory_matrix.cc describes a case. Rows of other places in the file are
kept.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import patience

from jaxccomp.bench import launch, machine
from stress import survivors
from stress.memory.rank import names

RANK = str(pathlib.Path(__file__).with_name("rank.py"))
PLACES = ("mpi", "mpi, as on two hosts", "ucx", "ucx, single-copy reads")
START_SECONDS, CASE_SECONDS = 30, 10
# UCX 1.22 aborts a process that is connecting to a process that is killed: as it destroys the
# endpoint, it calls a function that it has not set. Such a case has no result; it is repeated once.
UCX_ABORT = re.compile(r"stubs\.c:\d+\s+Assertion `0' failed")


def commands(place: str, arguments: list[str], folder: str) -> list[list[str]]:
    """Returns the commands of a job: one mpiexec, or two ranks."""
    if not place.startswith("mpi"):
        socket = f"{folder}/socket"
        return [[sys.executable, "-P", *arguments, str(rank), socket] for rank in (0, 1)]
    if "peer killed" in arguments:
        return [survivors.command(2, arguments)]
    return [launch.command(2, arguments)]


def finish(process: subprocess.Popen[str], seconds: float) -> str:
    """Waits for a process, kills it after ``seconds``, and returns its output."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0] + f"\n(killed after {seconds:.0f} s)"


def run_job(library: str, place: str, row: str, fault: str, first: int, runs: int) -> dict:
    """Runs cases in one job, and returns the counts of the table."""
    arguments = [RANK, library, place, row, fault, str(first), str(runs)]
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen(
                each, env=launch.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, start_new_session=True,
            )
            for each in commands(place, arguments, folder)
        ]  # fmt: skip
        seconds = patience.seconds(START_SECONDS + CASE_SECONDS * runs)
        with ThreadPoolExecutor(len(started)) as pool:
            texts = list(pool.map(lambda each: finish(each, seconds), started))
    count = {"runs": 0, "failed": 0, "held": 0, "wrong": 0, "ucx_aborts": 0}
    # The launcher may merge lines of two ranks.
    for case in re.findall(r"\[\d+(?:, \d+){4}\]", "".join(texts)):
        rank, _, checks, failed, held = json.loads(case)
        count["wrong"] += checks
        if rank == 0:
            count["runs"] += 1
            count["failed"] += failed
            count["held"] += held
    missing = max(runs - count["runs"], 0)
    ended_by_ucx = fault == "peer killed" and any(map(UCX_ABORT.search, texts))
    count["ucx_aborts" if ended_by_ucx else "wrong"] += missing
    if missing or count["wrong"]:
        print(f"{place}, {row}, {fault}, from {first}: {count}", *texts, sep="\n", flush=True)
    return count


def run_cell(library: str, place: str, row: str, fault: str, runs: int) -> dict:
    """Runs one row with one fault in one place."""
    each = 1 if fault == "peer killed" else min(runs, 25)
    total: dict = {}
    for first in range(0, runs, each):
        job = library, place, row, fault, first, min(each, runs - first)
        jobs = [run_job(*job)]
        if jobs[0]["ucx_aborts"]:
            jobs.append(run_job(*job))
        for counts in jobs:
            total = {name: total.get(name, 0) + count for name, count in counts.items()}
    print(f"{place}: {row}, {fault}: {total}", flush=True)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--places", nargs="+", choices=PLACES, default=PLACES)
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--faults", nargs="+")
    parser.add_argument("--at-once", type=int, default=4, help="jobs, which mostly wait")
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    library = ctypes.CDLL(arguments.library)
    rows = arguments.rows or names(library.JaxccompMemoryRows)
    faults = arguments.faults or names(library.JaxccompMemoryFaults)
    table = {}
    if arguments.output and arguments.output.exists():
        table = json.loads(arguments.output.read_text())
    mpi = " ".join(launch.vendor()) if any("mpi" in place for place in arguments.places) else ""
    bad = 0
    with ThreadPoolExecutor(arguments.at_once) as pool:
        cells = {}
        for place, row, fault in itertools.product(arguments.places, rows, faults):
            if place.startswith("mpi") and fault == "peer killed" and survivors.why_not():
                continue
            cells[place, row, fault] = pool.submit(
                run_cell, arguments.library, place, row, fault, arguments.runs
            )
        for (place, row, fault), cell in cells.items():
            counts = cell.result()
            bad += counts["wrong"] or arguments.runs - counts["runs"]
            name = place.replace("mpi", mpi, 1) if mpi else place
            facts = table.setdefault(name, {"machine": machine.processor(), "rows": {}})
            facts["rows"].setdefault(row, {})[fault] = counts
    if arguments.output:
        arguments.output.write_text(json.dumps(table, indent=1) + "\n")
    print("wrong:", bad)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())

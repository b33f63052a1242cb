"""What a small call costs beside its floor, and what the engine's checks add to it.

    PYTHONPATH=tools python -m bench.call_cost --rounds 5 --json FILE

The floor is an empty jitted call and the same operation through mpi4py: the sum of both, each timed
by itself (``times_floor``), and one after the other in the same loop, as a program without this
package would call them (``times_both``). The second is the larger one: what each has in the
processor's caches the other drives out. All run in the same processes, block by block, so that a
processor that changes its clock slows all of them alike; the engine's options differ between
processes, which take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping
from typing import Any

from testbed import scenario, workers

from bench import worker
from jaxccomp.bench import launch

RANKS = 2
OPERATIONS = ("bcast", "allreduce", "alltoall")
SIZES = (1 << 10, 64 << 10, 1 << 20)
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "no checks": {"JAXCCOMP_CHECK_PROGRAMS": "0"},
    "check_launches": {"JAXCCOMP_CHECK_LAUNCHES": "1"},
}
BLOCKS = 15
CONTENDERS = ("jaxccomp", "empty", "mpi4py", "mpi4py-fresh")
NAMES = (*CONTENDERS, "empty+mpi4py")


def measure(operation: str, size: int, rank: int, comm: Any) -> dict[str, Any]:
    """Times of the contenders in microseconds, on the slowest rank; medians over blocks."""
    x = worker.operand(operation, size, rank, RANKS)
    small = worker.operand("empty", 1 << 10, rank, RANKS)
    steps = {
        name: worker.CONTENDERS[name][1](
            *(("empty", small) if name == "empty" else (operation, x)), rank, RANKS
        )
        for name in CONTENDERS
    }

    def both() -> None:
        steps["empty"]()
        steps["mpi4py"]()

    calls = max(5, min(300, (16 << 20) // size))
    blocks = []
    for _ in range(BLOCKS):
        comm.Barrier()
        own = [worker.time_calls(step, calls) for step in (*steps.values(), both)]
        blocks.append([max(times) for times in zip(*comm.allgather(own), strict=True)])
    medians = map(statistics.median, zip(*blocks, strict=True))
    return {
        "op": operation,
        "size_bytes": size,
        **{f"{name}_us": round(each, 2) for name, each in zip(NAMES, medians, strict=True)},
        # Of each block, since the clock is the same within one.
        "times_floor": statistics.median(own / (empty + mpi) for own, empty, mpi, _, _ in blocks),
        "times_floor_fresh": statistics.median(
            own / (empty + mpi) for own, empty, _, mpi, _ in blocks
        ),
        "times_both": statistics.median(own / together for own, *_, together in blocks),
    }


def work(given: argparse.Namespace) -> None:
    """One rank of a job; the first one says a line for each operation and size."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for size in SIZES:
        for operation in OPERATIONS:
            row = measure(operation, size, comm.rank, comm)
            if comm.rank == 0:
                workers.say(row)


def measure_settings(given: argparse.Namespace) -> list[scenario.Line]:
    """Measures all settings in turns, and prints medians over the rounds."""
    rounds: dict[tuple[str, int, str], list[scenario.Line]] = {}
    for _ in range(given.rounds):
        for setting, variables in SETTINGS.items():
            outcome = launch.run(
                RANKS,
                ["-P", __file__, "--rank", "all"],
                bind=given.bind,
                env={"PYTHONPATH": workers.python_path(), **variables},
                timeout_seconds=300,
            )
            if outcome.error:
                raise workers.FailedError(f"{setting}: {outcome.error}\n{outcome.output}")
            for row in workers.lines(outcome.output):
                rounds.setdefault((row["op"], row["size_bytes"], setting), []).append(row)
    lines: list[scenario.Line] = [{"bind": given.bind}]
    for (operation, size, setting), rows in rounds.items():
        values = {
            key: round(statistics.median(row[key] for row in rows), 3)
            for key in rows[0]
            if key not in ("op", "size_bytes")
        }
        lines.append({"op": operation, "size_bytes": size, "setting": setting, **values})
        print(lines[-1], flush=True)
    return lines


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bind", choices=("core", "none"), default="core")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    return scenario.run(parser, measure_settings, worker="rank", work=work)


if __name__ == "__main__":
    sys.exit(main())

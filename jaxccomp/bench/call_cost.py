"""What a small call costs beside its floor, and what the engine's checks add to it.

    python -m jaxccomp.bench.call_cost --rounds 5 --json FILE

The floor is an empty jitted call and the same operation through mpi4py: the sum of both, each timed
by itself (``times_floor``), and one after the other in the same loop, as a program without this
package would call them (``times_both``). The second is the larger one: what each has in the
processor's caches the other drives out. All run in the same processes, block by block, so that a
processor that changes its clock slows all of them alike; the engine's options differ between
processes, which take turns.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
from collections.abc import Mapping
from typing import Any

from jaxccomp._native import json_files
from jaxccomp.bench import launch, machine, worker

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


def run_rank(path: pathlib.Path) -> None:
    """One rank of a job; the first one writes a line for each operation and size."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rows = [measure(op, size, comm.rank, comm) for size in SIZES for op in OPERATIONS]
    if comm.rank == 0:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run_round(bind: str, path: pathlib.Path, setting: str) -> list[dict[str, Any]]:
    """A job's rows."""
    outcome = launch.run(
        RANKS,
        ["-P", "-m", "jaxccomp.bench.call_cost", "--rank", str(path)],
        bind=bind,
        env=SETTINGS[setting],
        timeout_seconds=300,
    )
    if outcome.error:
        raise RuntimeError(f"{setting}: {outcome.error}\n{outcome.output}")
    return json_files.lines(path)


def main() -> None:
    """Measures all settings in turns, prints and writes medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bind", choices=("core", "none"), default="core")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    parser.add_argument("--rank", type=pathlib.Path, help=argparse.SUPPRESS)
    if sys.argv[1:2] == ["--rank"]:
        return run_rank(pathlib.Path(sys.argv[2]))
    arguments = parser.parse_args()
    rounds: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for _ in range(arguments.rounds):
        for setting in SETTINGS:
            for row in run_round(arguments.bind, arguments.json, setting):
                rounds.setdefault((row["op"], row["size_bytes"], setting), []).append(row)
    lines = [{"machine": machine.facts(), "bind": arguments.bind}]
    for (operation, size, setting), rows in rounds.items():
        values = {
            key: round(statistics.median(row[key] for row in rows), 3)
            for key in rows[0]
            if key not in ("op", "size_bytes")
        }
        lines.append({"op": operation, "size_bytes": size, "setting": setting, **values})
        print(lines[-1], flush=True)
    arguments.json.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()

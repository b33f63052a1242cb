"""NCCL beside the engine and XLA on this machine's GPU: values, and random programs of all three.

    python tests/gpu/nccl.py BUILD_FOLDER [--device cpu] [--seed 7] [--programs 1000] [--seconds S]
                             [--launch N] [--dry-run]

Starts ranks that share the GPU, in two styles: `comm`, where operations name a communicator (the
engine and NCCL), and `axis`, where they name an axis of a mesh over all ranks under jax.distributed
(XLA's own collectives, too). Prints one JSON object per line. A failure names seed, launch and
step; `--launch N` repeats that launch alone.
Exits with 1 where a value is wrong, and with 77 where there is no GPU. `--device cpu` runs what
needs no GPU.
"""

from __future__ import annotations

import dataclasses
import pathlib
import socket
import sys

import process
import ranks

LEAST_SECONDS = 30
START_SECONDS = 12.0  # and to end


@dataclasses.dataclass(frozen=True)
class Run:
    """Ranks in one style; ``share`` is of the programs, and ``time`` of the seconds."""

    ranks: int
    style: str
    share: float
    time: float


# With 2 ranks all that is asked for, with 4 less: NCCL does not promise that as many work on a GPU.
RUNS = (
    Run(2, "axis", 1.0, 0.5),
    Run(2, "comm", 1.0, 0.35),
    Run(4, "comm", 0.2, 0.15),
)


def free_port() -> int:
    """For the processes of jax.distributed to meet at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> int:
    """Runs what can be run, and says what cannot."""
    parser = ranks.parser(__doc__, 295.0)
    parser.add_argument("--seed", type=int, default=7, help="default: %(default)s")
    parser.add_argument("--programs", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--launch", type=int, default=-1, help="only this one")
    asked = parser.parse_args()
    if asked.dry_run:
        for run in RUNS:
            count = int(asked.programs * run.share)
            ranks.say(would_run=f"{count} programs, {run.ranks} ranks, {run.style}")
        return 0
    clock, build = process.Clock(asked.seconds), pathlib.Path(asked.build).resolve()
    if why := ranks.no_gpu(asked.device):
        print(f"nccl: {why}", file=sys.stderr)
        return ranks.NO_DEVICE
    if missing := ranks.why_not(asked.device, ranks.environment(build, asked.device)):
        ranks.say(not_run="nccl", reason=missing)
        return 0
    worst = 0
    for number, run in enumerate(RUNS):
        name = f"{run.ranks} ranks, {run.style}"
        seconds = clock.left * run.time / sum(each.time for each in RUNS[number:])
        if seconds < LEAST_SECONDS:
            ranks.say(not_run=name, reason=f"{max(seconds, 0):.0f} s were left")
            continue
        given = [run.style, asked.seed, max(int(asked.programs * run.share), 1), asked.launch]
        given += [int(seconds - START_SECONDS), free_port() if run.style != "comm" else 0]
        todo = ranks.command(run.ranks, process.python("nccl_rank.py", asked.device, *given))
        if todo is None:
            ranks.say(not_run=name, reason=ranks.NO_MPIEXEC)
            continue
        env = ranks.environment(build, asked.device, run.ranks)
        worst |= ranks.run(todo, env, name, seconds)
    return worst


if __name__ == "__main__":
    process.end_on_signals()
    sys.exit(main())

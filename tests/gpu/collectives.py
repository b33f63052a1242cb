"""Collectives on this machine's GPU, under mpiexec: compared with the CPU's, and measured.

    python tests/gpu/collectives.py BUILD_FOLDER [--device cpu] [--ranks 1,2,4] [--mib 64,256]

Prints one JSON object per line; what cannot be run is one, too. All ranks share one GPU. The
engine is the one of BUILD_FOLDER (`make gpu-module`) where there is one, else the installed one.
Exits with 77 where there is no GPU. `--device cpu` runs the same on the CPU, to check this program.
"""

from __future__ import annotations

import itertools
import pathlib
import sys

import process
import ranks

# What each may take, and without which it is not begun.
LIMITS = {"compare": 90, "measure": 75, "direct": 45}
LEAST_SECONDS = 20
# How messages go between ranks, and the options for it; all but the first take two ranks.
PINNED = "pinned"
WAYS = {
    PINNED: {},
    "ipc": {"JAXCCOMP_DEVICE_IPC_BYTES": "1024"},
    "CUDA-aware MPI": {"JAXCCOMP_DEVICE_MPI_BYTES": "1"},
}
# First whether values are right, with any number of ranks.
RUNS = (
    ("compare", PINNED),
    ("compare", "ipc"),
    ("direct", "CUDA-aware MPI"),
    ("measure", PINNED),
    ("measure", "ipc"),
)


def main() -> int:
    """Runs what can be run, and says what cannot."""
    parser = ranks.parser(__doc__, 495.0, dry_run=False)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--mib", default="64,256")
    asked = parser.parse_args()
    clock, build = process.Clock(asked.seconds), pathlib.Path(asked.build).resolve()
    if why := ranks.no_gpu(asked.device):
        print(f"collectives: {why}", file=sys.stderr)
        return ranks.NO_DEVICE
    if missing := ranks.why_not(asked.device, ranks.environment(build, asked.device)):
        ranks.say(not_run="collectives", reason=missing)
        return 0
    worst = 0
    counts = [int(each) for each in asked.ranks.split(",")]
    for (part, way), count in itertools.product(RUNS, counts):
        if way != PINNED and (count == 1 or asked.device == "cpu"):
            continue
        program = process.python(f"collectives_{part}.py", asked.device, way)
        todo = ranks.command(count, program + ([asked.mib] if part == "measure" else []))
        name, seconds = f"{part}, {count} ranks, {way}", min(LIMITS[part], clock.left)
        if todo is None:
            ranks.say(not_run=name, reason=ranks.NO_MPIEXEC)
        elif seconds < LEAST_SECONDS:
            ranks.say(not_run=name, reason=f"{max(clock.left, 0):.0f} s were left")
        else:
            env = ranks.environment(build, asked.device, count) | WAYS[way]
            worst |= ranks.run(todo, env, name, seconds)
    return worst


if __name__ == "__main__":
    process.end_on_signals()
    sys.exit(main())

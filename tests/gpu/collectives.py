"""Compares collectives on this machine's GPU with the CPU's, and times them, under mpiexec.

    python tests/gpu/collectives.py BUILD_FOLDER [--device cpu] [--ranks 1,2,4] [--mib 64,256]
                                    [--counts 1,1003,3000000] [--seconds S]

Prints one JSON object per line, also for each case that cannot run. All ranks share one GPU. Uses
the engine in BUILD_FOLDER (`make gpu-module`) if there is one, else the installed one. Exits with
77 without a GPU. `--device cpu` runs on the CPU, to test this program.
"""

from __future__ import annotations

import itertools
import pathlib
import sys

import process
import ranks

# Limits of each run in seconds; a run does not start with less than MIN_SECONDS left.
LIMITS = {"axis": 90, "compare": 150, "measure": 90}
MIN_SECONDS = 20


def main() -> int:
    """Runs all cases that can run, and reports the others with the reason."""
    parser = ranks.parser(__doc__, 495.0, dry_run=False)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--mib", default="64,256")
    # The last count spans several parts of the stage.
    parser.add_argument("--counts", default="1,1003,3000000", help="of values that are compared")
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
    # First check values: along an axis of one process's devices, then between ranks.
    runs = [("axis", 1), *itertools.product(("compare", "measure"), counts)]
    told = {"axis": [], "compare": [asked.counts], "measure": [asked.mib]}
    for part, count in runs:
        program = process.python(f"collectives_{part}.py", asked.device, *told[part])
        todo = ranks.command(count, program)
        name, seconds = f"{part}, {count} ranks", min(LIMITS[part], clock.left)
        if todo is None:
            ranks.say(not_run=name, reason=ranks.NO_MPIEXEC)
        elif seconds < MIN_SECONDS:
            ranks.say(not_run=name, reason=f"{max(clock.left, 0):.0f} s were left")
        else:
            env = ranks.environment(build, asked.device, count)
            worst |= ranks.run(todo, env, name, seconds)
    return worst


if __name__ == "__main__":
    process.end_on_signals()
    sys.exit(main())

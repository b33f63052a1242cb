"""Two ranks on this machine's GPU: one comes late, the other has queued much behind its operation.

    python tests/gpu/late.py BUILD_FOLDER [--device cpu] [--seconds S] [--dry-run]

Runs late_rank.py with each value of the option device_wait, the safe one first. Prints one JSON
object per line. Exits with 1 where a value is wrong or ranks stand still, and with 77 where there
is no GPU.
"""

from __future__ import annotations

import pathlib
import sys

import process
import ranks

RANKS = 2
WAITS = ("host", "stream")
LEAST_SECONDS = 30


def main() -> int:
    """Runs what there is time for."""
    asked = ranks.parser(__doc__, 120.0).parse_args()
    if asked.dry_run:
        for wait in WAITS:
            ranks.say(would_run=f"{RANKS} ranks, device_wait={wait}")
        return 0
    clock, build = process.Clock(asked.seconds), pathlib.Path(asked.build).resolve()
    if why := ranks.no_gpu(asked.device):
        print(f"late: {why}", file=sys.stderr)
        return ranks.NO_DEVICE
    env = ranks.environment(build, asked.device, RANKS)
    if missing := ranks.why_not(asked.device, env):
        ranks.say(not_run="late", reason=missing)
        return 0
    worst = 0
    for number, wait in enumerate(WAITS):
        seconds = clock.left / (len(WAITS) - number)
        todo = ranks.command(RANKS, process.python("late_rank.py"))
        if todo is None or seconds < LEAST_SECONDS:
            reason = ranks.NO_MPIEXEC if todo is None else f"{max(seconds, 0):.0f} s were left"
            ranks.say(not_run=f"device_wait={wait}", reason=reason)
            continue
        env = env | {"JAXCCOMP_DEVICE_WAIT": wait, "JAXCCOMP_TIMEOUT_SECONDS": "10"}
        worst |= ranks.run(todo, env, f"device_wait={wait}", seconds)
    return worst


if __name__ == "__main__":
    process.end_on_signals()
    sys.exit(main())

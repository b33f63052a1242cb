"""What CUDA does while a stream waits for the host: each case in a process of its own.

    python tests/gpu/probe.py BUILD_FOLDER [--seconds S] [--dry-run]

The cases are those of `jaxccomp_gpu_tests probe`, with as many hardware queues as CUDA has by
default, with one and with 32. Prints a JSON object per case: whether what it did had to wait until
the stream went on. A case that does not end is ended, and is a line, too. Exits with 77 where
there is no GPU.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import process
import ranks

CONNECTIONS = ("", "32", "1")
# A case's own limit is 22 s.
MOST_SECONDS = 30.0


def main() -> int:
    """Runs what there is time for."""
    asked = ranks.parser(__doc__, 120.0, device=False).parse_args()
    if asked.dry_run:
        for connections in CONNECTIONS:
            ranks.say(would_run=f"all cases, {connections or 'default'} connections")
        return 0
    if why := ranks.no_gpu("cuda"):
        print(f"probe: {why}", file=sys.stderr)
        return ranks.NO_DEVICE
    clock, program = (
        process.Clock(asked.seconds),
        str(pathlib.Path(asked.build, "jaxccomp_gpu_tests")),
    )
    listed = subprocess.run([program, "probe"], capture_output=True, text=True, check=True)
    for connections in CONNECTIONS:
        env = {
            name: each for name, each in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"
        }
        if connections:
            env["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
        for case in listed.stdout.splitlines():
            where = {"probe": case, "connections": connections or "default"}
            if clock.left < 2:
                ranks.say(
                    not_run=f"{case}, {where['connections']} connections", reason="no time was left"
                )
                continue
            done = process.run(
                [program, "probe", case], env, min(MOST_SECONDS, clock.left), "JAXCCOMP_GPU_PROBE"
            )
            for row in ranks.rows(done.output):
                ranks.say(**row)
            if done.wrong:
                # That is what is to be found out, and nothing wrong.
                ranks.say(**where, ended=done.wrong)
    return 0


if __name__ == "__main__":
    process.end_on_signals()
    sys.exit(main())

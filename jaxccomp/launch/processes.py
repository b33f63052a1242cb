"""Starts a job's processes on this machine where there is no mpiexec:

``python -IS processes.py N COMMAND ...``. It behaves like one: each process finds its rank in its
environment, signals go to all, and the status is that of the first that fails.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def main(count: int, command: Sequence[str]) -> int:
    """Runs ``command`` as so many ranks, to their end."""
    started: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: object) -> None:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    for rank in range(count):
        place = {"RANK": rank, "SIZE": count, "LOCAL_RANK": rank, "LOCAL_SIZE": count}
        own = {f"JAXCCOMP_{name}": str(value) for name, value in place.items()}
        started.append(
            subprocess.Popen(
                command,
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                # If this one is killed, nobody else tells them.
                preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        )
    statuses = [process.wait() for process in started]
    failed = [128 - status if status < 0 else status for status in statuses if status]
    return failed[0] if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

"""Starts the ranks of one host without mpiexec.

``python -IS start.py processes N COMMAND ...`` replaces mpiexec: each process gets its rank in its
environment, signals go to all ranks, and the exit status is the first failed rank's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from jaxccomp.launch import lines, signals

_FORWARDED = (*signals.ENDING, signal.SIGUSR1)


def main(count: str, *command: str) -> int:
    """Runs ``command`` as ``count`` ranks, all of a job, to their end."""
    processes = Processes()
    processes.start(command, os.environ, 0, int(count), int(count))
    return processes.wait()


class Processes:
    """Ranks of a job on this host. Signals to this process are passed on to them."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self._last = 0  # signal
        for number in _FORWARDED:
            signal.signal(number, lambda number, _: self.forward(number))

    def start(
        self, command: Sequence[str], environ: Mapping[str, str], first: int, count: int, size: int
    ) -> None:
        """Starts ranks.

        Args:
          command: what each runs.
          environ: of each, without its rank.
          first: the lowest rank of this host.
          count: how many ranks this host has.
          size: how many the job has.
        """
        for local_rank in range(count):
            own = {
                "RANK": first + local_rank,
                "SIZE": size,
                "LOCAL_RANK": local_rank,
                "LOCAL_SIZE": count,
            }
            process = subprocess.Popen(
                command,
                env={**environ, **{f"JAXCCOMP_{name}": str(value) for name, value in own.items()}},
                stdin=subprocess.DEVNULL,
                # If this process is killed, the kernel ends the ranks.
                preexec_fn=lambda: signals.die_with_parent(signal.SIGTERM),
            )
            self._started.append(process)
            if self._last:  # it came before this one was there
                _send(process, self._last)

    def forward(self, number: int) -> None:
        """Sends a signal to all."""
        self._last = number
        for process in self._started:
            _send(process, number)

    def wait(self) -> int:
        """Waits until all have ended.

        Returns:
          The exit status of the first rank that failed; 0 where none did.
        """
        statuses = [lines.exit_status(process.wait()) for process in self._started]
        return next(filter(None, statuses), 0)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)

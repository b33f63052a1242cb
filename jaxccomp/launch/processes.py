"""Starts the ranks of one host without mpiexec, and reserves a port where they meet.

``python -IS start.py processes N COMMAND ...`` replaces mpiexec: it sets each process's rank in its
environment, forwards signals to all ranks, and returns the exit status of the first failed rank.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from jaxccomp.launch import lines, signals

_FORWARDED = (*signals.ENDING, signal.SIGUSR1)


def main(count: str, *command: str) -> int:
    """Run ``command`` as all ``count`` ranks of a job, to their end."""
    processes = Processes()
    processes.start(command, os.environ, 0, int(count), int(count))
    return processes.wait()


class Processes:
    """The ranks of a job on this host. This process forwards its signals to them."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self._last = 0  # the last signal
        for number in _FORWARDED:
            signal.signal(number, lambda number, _: self.forward(number))

    def start(
        self, command: Sequence[str], environ: Mapping[str, str], first: int, count: int, size: int
    ) -> None:
        """Start ranks.

        Args:
          command: the command of each rank.
          environ: the environment of each rank, without its rank.
          first: the lowest rank on this host.
          count: the number of ranks on this host.
          size: the number of ranks of the job.
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
            if self._last:  # a signal came before this process was appended to the list
                _send(process, self._last)

    def forward(self, number: int) -> None:
        """Send a signal to all ranks."""
        self._last = number
        for process in self._started:
            _send(process, number)

    def wait(self) -> int:
        """Wait until all ranks have ended.

        Returns:
          The exit status of the lowest failed rank; 0 if none failed.
        """
        statuses = [lines.exit_status(process.wait()) for process in self._started]
        return next(filter(None, statuses), 0)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


@contextlib.contextmanager
def reserved_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Reserve a port for the length of a ``with`` block.

    Otherwise the system may assign the port to a connection of another process before a rank
    listens there. If a socket is bound to a port and does not listen, Linux never assigns the port
    automatically, but lets a server with SO_REUSEADDR bind to it by number.

    Example:
      >>> with reserved_port() as port, socket.create_server(("127.0.0.1", port)) as server:
      ...     server.getsockname()[1] == port
      True
    """
    with socket.socket() as kept:
        kept.bind((host, 0))
        # After bind(): with this option, bind() could share a port that another process reserves.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield kept.getsockname()[1]

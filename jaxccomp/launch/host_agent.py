"""Starts a job's ranks on a host that the launcher reaches by ssh: ``start.py host_agent``.

The launcher (`ssh.py`) writes to standard input, one JSON object per line:

1. the command, folder, environment and ranks. The environment has the job's secret, which must not
   appear on a command line. The agent answers with its address and a free port;
2. the coordinator's address, as an environment variable: the agent starts the ranks;
3. signals for the ranks.

If standard input ends, the launcher or the connection has ended: the agent ends the ranks.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from jaxccomp.launch import leftovers, lines, signals
from jaxccomp.launch.processes import Processes, reserved_port

_GRACE_SECONDS = 5.0  # for ranks to end their programs
_USAGE_STATUS = 2
_OUT = 1


def main() -> int:
    """Run this host's ranks to their end; return the first failed rank's status, or 0."""
    messages = _messages(0)
    job = next(messages, None)
    if job is None:
        return 0
    first, count, size = job["ranks"]
    try:
        os.chdir(job["folder"])
    except OSError as error:
        _tell(first, trouble=f"the folder of the program is not there: {error}")
        return _USAGE_STATUS
    server, client = _ends_of_connection()
    with reserved_port("") as port:
        _tell(first, server=server, client=client, port=port)
        last = next(messages, None)
        if last is None or "environment" not in last:  # the job ended before its ranks started
            return 0
        processes = Processes()
        environ = {**os.environ, **job["environment"], **last["environment"]}
        processes.start(job["command"], environ, first, count, size)
        signals.start_thread(_obey, messages, processes, job["mark"])
        return processes.wait()


def _obey(messages: Iterator[dict[str, Any]], processes: Processes, mark: str) -> None:
    try:
        for message in messages:
            processes.forward(message["signal"])
    finally:
        processes.forward(signal.SIGTERM)
        time.sleep(_GRACE_SECONDS)
        leftovers.kill(mark)


def _messages(descriptor: int) -> Iterator[dict[str, Any]]:
    """Yield the messages. Not through ``sys.stdin``: a thread must not hold its lock at exit."""
    left = b""
    while part := os.read(descriptor, 1 << 16):
        *whole, left = (left + part).split(b"\n")
        yield from map(json.loads, whole)


def _ends_of_connection() -> tuple[str, str]:
    """Return this host's and the launcher's address in the ssh connection; empty if unknown."""
    client, _, server, _ = os.environ.get("SSH_CONNECTION", "").split() or ("", "", "", "")
    return server, client


def _tell(first: int, **values: Any) -> None:
    os.write(_OUT, lines.told(first, **values))

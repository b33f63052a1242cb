"""Starts a job's ranks on a host that the launcher reaches by ssh: ``start.py host_agent``.

The launcher writes JSON, an object a line, to standard input (`ssh.py`):

1. the command, folder, environment and ranks. The environment holds the
   job's secret, so it travels here and on no command line. The agent answers with its address and
   with a port that is free;
2. variables that follow from all hosts' answers, the coordinator's address: the ranks start;
3. signals for them.

The end of standard input is that of the launcher, or of the connection to it: the ranks are ended.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from jaxccomp.launch import leftovers, lines, ports, signals
from jaxccomp.launch.processes import Processes

_GRACE_SECONDS = 5.0  # in which ranks end their programs
_USAGE_STATUS = 2
_OUT = 1


def main() -> int:
    """Runs this host's ranks to their end; returns the status of the first that failed."""
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
    with ports.reserved("") as port:
        _tell(first, server=server, client=client, port=port)
        last = next(messages, None)
        if last is None or "environment" not in last:  # it has ended before it began
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
    """The lines that come; not by ``sys.stdin``, which a thread must not hold at the end."""
    left = b""
    while part := os.read(descriptor, 1 << 16):
        *whole, left = (left + part).split(b"\n")
        yield from map(json.loads, whole)


def _ends_of_connection() -> tuple[str, str]:
    """The addresses of this host and of the launcher's, as ssh has connected them; else empty."""
    client, _, server, _ = os.environ.get("SSH_CONNECTION", "").split() or ("", "", "", "")
    return server, client


def _tell(first: int, **values: Any) -> None:
    os.write(_OUT, lines.told(first, **values))

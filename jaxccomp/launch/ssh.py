"""Starts a job's ranks on several hosts by ssh, without mpiexec.

``python -IS start.py ssh RANKS HOSTS NAMES MARK COMMAND ...`` replaces mpiexec: it writes whole
lines of ranks, forwards signals to all ranks, and returns the exit status of the first failed host.
It starts `host_agent` on each host with the OpenSSH client, which must not ask for a password
(``BatchMode``) and takes all other settings from the user's configuration.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import ipaddress
import json
import os
import pathlib
import queue
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from jaxccomp.launch import lines, mpiexec, signals

COORDINATOR = "JAXCCOMP_COORDINATOR"
_ANSWER_SECONDS = 60.0  # for ssh to connect, and Python to start
_DRAIN_SECONDS = 1.0  # to read the remaining output of an ended connection
_LAST_LINES = 5
_NO_CONNECTION = 255  # ssh's own status
_OUT, _ERR = 1, 2
_START = str(pathlib.Path(__file__).with_name("start.py"))


def main(ranks: str, hosts: str, names: str, mark: str, *command: str) -> int:
    """Run ``command`` as ranks on these hosts, to their end.

    Args:
      ranks: the number of ranks.
      hosts: ``name:ranks``, separated by commas, with places for all ranks; filled in order.
      names: variables that ranks get in addition to `mpiexec.CARRIED`, separated by commas.
      mark: ``NAME=value``, which the processes of the job have in their environment.
      command: the command of each rank; it begins with a Python interpreter.
    """
    counts = divided(int(ranks), hosts.split(","))
    return _Hosts(counts, names.split(","), mark, list(command)).run()


def divided(ranks: int, slots: Sequence[str]) -> dict[str, int]:
    """Return the number of ranks of each host, in the order of ranks.

    >>> divided(4, ["a:2", "b:1", "c:1", "a:2"])
    {'a': 4}
    """
    room: dict[str, int] = {}
    for each in slots:
        name, _, count = each.rpartition(":")
        room[name] = room.get(name, 0) + int(count)
    counts = {}
    for name, count in room.items():
        if ranks:
            counts[name] = min(count, ranks)
            ranks -= counts[name]
    return counts


def why_missing() -> str:
    """Return why there is no ssh; empty if there is one."""
    return "" if shutil.which("ssh") else "there is no ssh in the PATH: install OpenSSH's client"


@dataclasses.dataclass
class _Host:
    """A host of the job, and its ssh process."""

    name: str
    first: int  # its lowest rank
    count: int
    process: subprocess.Popen[bytes]
    answer: dict[str, Any] | None = None  # the agent's
    # The last lines from ssh and the remote shell.
    said: collections.deque[str] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_LAST_LINES)
    )

    def send(self, **message: Any) -> None:
        """Send a line to the agent; do nothing if the connection has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()


class _Hosts:
    """The state of a job. Only the main thread uses it; other threads send events."""

    def __init__(self, counts: dict[str, int], names: Sequence[str], mark: str, command: list[str]):
        self._counts = counts
        self._names, self._mark, self._command = names, mark, command
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._writes = threading.Lock()
        self._status = 0  # of the first host that has failed
        self._begun = False  # the agents were told to start the ranks
        self._ending = False

    def run(self) -> int:
        # SimpleQueue.put may interrupt a SimpleQueue.get of the same thread.
        for number in signals.ENDING:
            signal.signal(number, lambda number, _: self._events.put(("signal", number)))
        size = sum(self._counts.values())
        self._hosts: list[_Host] = []
        for name, count in self._counts.items():
            first = sum(each.count for each in self._hosts)
            self._hosts.append(_Host(name, first, count, self._connect(name)))
        environment = {k: v for k, v in os.environ.items() if self._travels(k)}
        for host in self._hosts:
            streams = [
                signals.start_thread(self._read, host, host.process.stdout, _OUT),
                signals.start_thread(self._read, host, host.process.stderr, _ERR),
            ]
            signals.start_thread(self._wait, host, streams)
            # In a thread: writing a large environment blocks until ssh has connected.
            send = functools.partial(
                host.send,
                ranks=[host.first, host.count, size],
                environment=environment,
                folder=os.getcwd(),
                command=self._command,
                mark=self._mark,
            )
            signals.start_thread(send)
        running = len(self._hosts)
        answer_by = time.monotonic() + _ANSWER_SECONDS
        while running:
            left = None if self._begun else max(answer_by - time.monotonic(), 0.0)
            try:
                kind, *values = self._events.get(timeout=left)
            except queue.Empty:
                self._begun = True  # no further timeout
                silent = [host for host in self._hosts if host.answer is None]
                names = ", ".join(host.name for host in silent)
                seconds = f"{_ANSWER_SECONDS:g} s"
                self._fail(silent[0], 1, f"ssh has not reached host {names} in {seconds}")
                continue
            if kind == "told":
                self._told(*values)
            elif kind == "signal":
                self._end(*values)
            elif kind == "ended":
                running -= 1
                self._ended(*values)
        return self._status

    def _connect(self, name: str) -> subprocess.Popen[bytes]:
        agent = shlex.join([self._command[0], "-IS", _START, "host_agent"])
        return subprocess.Popen(
            ["ssh", "-T", "-o", "BatchMode=yes", "--", name, agent],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signals.die_with_parent(signal.SIGTERM),
        )

    def _travels(self, name: str) -> bool:
        return name.startswith(mpiexec.CARRIED) or name in self._names

    def _read(self, host: _Host, stream: IO[bytes], to: int) -> None:
        for line in stream:
            rank, _, told = lines.parse(line)
            if told is not None and ("server" in told or "trouble" in told):
                self._events.put(("told", host, told))
                continue
            if rank is None:
                host.said.append(line.decode("utf-8", "replace").strip())
            self._write(to, line)

    def _write(self, to: int, line: bytes) -> None:
        # If the launcher has ended, this process is about to be ended too.
        with self._writes, contextlib.suppress(BrokenPipeError):
            while line:
                line = line[os.write(to, line) :]

    def _wait(self, host: _Host, streams: Sequence[threading.Thread]) -> None:
        status = host.process.wait()
        for each in streams:  # a shared ssh connection may keep them open
            each.join(_DRAIN_SECONDS)
        self._events.put(("ended", host, lines.exit_status(status)))

    def _told(self, host: _Host, told: dict[str, Any]) -> None:
        if "trouble" in told:
            self._fail(host, 1, f"host {host.name}: {told['trouble']}")
            return
        host.answer = told
        answers = [each.answer for each in self._hosts]
        if all(answers) and not self._ending:
            self._begun = True
            place = os.environ.get(COORDINATOR) or coordinator(self._hosts[0].name, answers)
            for each in self._hosts:
                each.send(environment={COORDINATOR: place})

    def _ended(self, host: _Host, status: int) -> None:
        if not status and (self._ending or host.answer is not None):
            return
        status = status or 1  # ssh has ended, and no agent has run on the host
        self._status = self._status or status
        if self._ending:
            return
        said = "; ".join(filter(None, host.said)) or "it says nothing"
        if host.answer is not None:
            # A failed rank has already reported its failure.
            if status == _NO_CONNECTION:
                self._fail(host, status, f"the connection to host {host.name} has ended: {said}")
        elif status == _NO_CONNECTION:
            self._fail(host, status, f"ssh does not reach host {host.name}: {said}")
        else:
            self._fail(
                host,
                status,
                f"host {host.name} does not start {self._command[0]} with {_START}: {said}. Both "
                "must lie at the same place on all hosts",
            )

    def _fail(self, host: _Host, status: int, trouble: str) -> None:
        """Report the error to the launcher, once, and end all ranks."""
        self._status = self._status or status
        if not self._ending:
            self._write(_ERR, lines.told(host.first, trouble=trouble, status=status))
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        self._ending = self._begun = True
        for host in self._hosts:
            if host.answer is None:
                host.process.terminate()
            else:
                host.send(signal=int(number))


def coordinator(name: str, answers: Sequence[Any]) -> str:
    """Return rank 0's ``address:port``, which all hosts can reach.

    Args:
      name: rank 0's host, as the user names it.
      answers: the answers of all hosts' agents, rank 0's host first.
    """
    address = answers[0]["server"]
    if not address:  # an ssh server that does not set SSH_CONNECTION
        address = name.rpartition("@")[2]
    elif ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        # This is the launcher's host: use the address that other hosts see.
        seen = [each["client"] for each in answers[1:] if each["client"]]
        address = next((a for a in seen if not ipaddress.ip_address(a).is_loopback), address)
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{answers[0]['port']}"

"""Supervises one rank's program: places it, prefixes its lines, kills its remaining processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import IO

from jaxccomp import errors
from jaxccomp._runtime.environment import Launcher, launcher
from jaxccomp.launch import gpus, leftovers, lines, placement, signals

_GRACE_SECONDS = 3  # between a forwarded signal and SIGKILL
_READ_SECONDS = 0.5  # to read the remaining output of an ended program
FROM_LAUNCHER = signal.SIGUSR1  # the launcher sends it before a signal for all ranks
# The launcher sends it when it receives SIGUSR1: the program gets SIGUSR1 if it handles the signal.
RECORD = signal.SIGUSR2
_OUT, _ERR = 1, 2
_USAGE_STATUS = 2


def main(launcher_pid: str, mark: str, settings: str, *command: str) -> int:
    """Run ``command`` as the rank that the environment names; return its exit status.

    Args:
      launcher_pid: the launcher's process; the job ends when it ends. "0": it is on another host.
      mark: ``NAME=value``, which the processes of the job have in their environment.
      settings: placement settings, as JSON.
      command: the program and its arguments.
    """
    if int(launcher_pid):
        signals.start_thread(_end_with, int(launcher_pid), mark)
    by = launcher()
    rank = by.rank if by else 0
    chosen = placement.Settings.from_json(settings)
    try:
        found = gpus.find().gpus if chosen.gpus is None else chosen.gpus
        local_rank, local_size = _local(by)
        place = placement.place(chosen, found, local_rank, local_size)
    except errors.JaxccompError as error:
        _write(_ERR, lines.prefixed(rank, str(error).encode()))
        _write(_ERR, lines.told(rank, status=_USAGE_STATUS))
        return _USAGE_STATUS
    if place.cores:
        os.sched_setaffinity(0, place.cores)
    environment = dict(os.environ)
    if placement.MEMORY_VARIABLES[0] in place.environment:
        environment.pop(placement.MEMORY_VARIABLES[1], None)
    # Without buffering, lines arrive when printed, and a crash loses none.
    environment.setdefault("PYTHONUNBUFFERED", "1")
    return Program(rank, list(command), environment | place.environment).run()


def _end_with(pid: int, mark: str) -> None:
    """Wait until the launcher has ended, then end its job.

    A killed launcher cannot end the job. The kernel then signals mpiexec, but Open MPI's mpiexec
    may hang when it ends.
    """
    try:
        launcher = os.pidfd_open(pid)
    except ProcessLookupError:
        pass  # it has ended
    except OSError:
        return  # a kernel without pidfds: rely on mpiexec
    else:
        select.select([launcher], [], [])
    time.sleep(2 * _GRACE_SECONDS)  # for mpiexec and the programs to end by themselves
    leftovers.kill(mark)
    os.kill(os.getpid(), signal.SIGKILL)


def _local(by: Launcher | None) -> tuple[int, int]:
    if by is None:
        return 0, 1
    if by.local_rank is None or by.local_size is None:
        raise errors.LaunchError(
            f"{by.name} does not say how many ranks this host has: start with the mpiexec of "
            "MPICH, Intel MPI or Open MPI."
        )
    return by.local_rank, by.local_size


class Program:
    """One rank's program, in its own process group."""

    def __init__(self, rank: int, command: list[str], environment: dict[str, str]):
        self._rank = rank
        self._asked = False  # the launcher or mpiexec asked it to end
        self._with_all = False  # the launcher asked all ranks to end
        self._process: subprocess.Popen[bytes] | None = None
        for number in signals.ENDING:
            signal.signal(number, self._forward)
        signal.signal(FROM_LAUNCHER, self._expect)
        signal.signal(RECORD, self._record)
        signal.signal(signal.SIGALRM, lambda *_: self._signal(signal.SIGKILL))
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=False,  # MPICH's ranks inherit their connection to mpiexec
            process_group=0,
            preexec_fn=lambda: signals.die_with_parent(signal.SIGKILL),
        )

    def run(self) -> int:
        """Wait for the program; return the exit status for mpiexec."""
        _write(_ERR, lines.told(self._rank, pid=os.getpid()))
        process = self._process
        assert process is not None and process.stdout is not None and process.stderr is not None
        streams = ((process.stdout, _OUT), (process.stderr, _ERR))
        readers = [signals.start_thread(self._copy, *each) for each in streams]
        status = lines.exit_status(process.wait())
        signal.alarm(0)
        self._signal(signal.SIGKILL)  # its remaining child processes
        for reader in readers:
            reader.join(timeout=_READ_SECONDS)
        if not self._asked:
            _write(_ERR, lines.told(self._rank, status=status))
        # A failure status would make mpiexec kill ranks that are still cleaning up.
        return 0 if self._with_all else status

    def _expect(self, *_: object) -> None:
        self._with_all = True

    def _record(self, *_: object) -> None:
        if self._process is not None and _handles(self._process.pid, signal.SIGUSR1):
            self._process.send_signal(signal.SIGUSR1)

    def _forward(self, number: int, _: object) -> None:
        self._asked = True
        self._signal(number)
        signal.alarm(_GRACE_SECONDS)

    def _signal(self, number: int) -> None:
        # The process group may not exist yet (between fork and exec), or no longer exist.
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                os.killpg(self._process.pid, number)

    def _copy(self, source: IO[bytes], to: int) -> None:
        for line in source:
            _write(to, lines.prefixed(self._rank, line))


def _handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler of the signal, instead of the default action."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _write(to: int, line: bytes) -> None:
    # If the launcher has ended, this process will be ended too.
    with contextlib.suppress(BrokenPipeError):
        while line:
            line = line[os.write(to, line) :]

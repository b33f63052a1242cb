"""Runs one job: starts mpiexec, shows the ranks' output, and waits until all have ended."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from jaxccomp import errors
from jaxccomp._runtime import environment
from jaxccomp.launch import leftovers, lines, mpiexec, signals, ssh
from jaxccomp.launch.placement import Settings
from jaxccomp.launch.processes import reserved_port
from jaxccomp.launch.supervise import FROM_LAUNCHER, RECORD

TIMED_OUT = 124  # the exit status of `timeout`
_LAST_LINES = 20
_WAITING_LINES = 1000
_GRACE_SECONDS = 6.0  # a rank's program gets half of it
_FIRST_LOOK_SECONDS = 0.2
_LAST_LOOK_SECONDS = 2.0
_START = str(pathlib.Path(__file__).with_name("start.py"))
PROGRAM = str(pathlib.Path(__file__).with_name("program.py"))

Show = Callable[[int | None, str, bool], None]
Report = Callable[[int, object], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """The description of a job.

    Attributes:
      ranks: the number of ranks.
      program: the script that each rank runs, or "-m" and a module, and its arguments.
      settings: where ranks are placed.
      hosts: ``name:ranks``; empty for this machine.
      python: the interpreter whose mpi4py selects the MPI.
      environment: variables added to this process's, on all hosts.
      timeout_seconds: the time after which the job is ended; None: no limit.
      log_dir: a folder for ``rank-N.txt``, one file per rank.
      transport: "mpi" or "ucx". With "ucx" ranks need no MPI: they meet at a coordinator on the
        first host, and ssh starts them on other hosts.
      restarts: how often the job has been started before; its logs are then appended to.
    """

    ranks: int
    program: Sequence[str]
    settings: Settings = Settings()
    hosts: Sequence[str] = ()
    python: str = sys.executable
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeout_seconds: float | None = None
    log_dir: pathlib.Path | None = None
    transport: str = "mpi"
    restarts: int = 0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a job.

    Attributes:
      status: its exit status.
      error: the reason if the status is not 0.
      rank: the rank that failed first, if one failed and is known.
      by_ranks: whether a rank failed. Not set by deadlines, signals and hosts that do not answer.
    """

    status: int
    error: str = ""
    rank: int | None = None
    by_ranks: bool = False

    @property
    def interrupted(self) -> bool:
        """Whether a signal to the launcher ended the job."""
        return self.rank is None and self.status - 128 in signals.ENDING


def print_line(rank: int | None, line: str, is_error: bool) -> None:
    """Prints a line on its original stream, prefixed by its rank; mpiexec's lines unchanged."""
    text = line if rank is None else f"[{rank}] {line}"
    print(text, file=sys.stderr if is_error else sys.stdout, flush=True)


def run(job: Job, show: Show = print_line, report: Report = lambda rank, counters: None) -> Outcome:
    """Run a job to its end.

    The first failure of a rank, the deadline, and SIGINT, SIGTERM and SIGHUP (which are forwarded
    to ranks) end the job: all ranks are asked to end, and killed after a few seconds.

    Args:
      job: the job.
      show: called with each line of output: its rank (None: mpiexec itself), text, and whether it
        is from standard error.
      report: called with a rank and the value of its message "live" (lines.py), which may be
        invalid.

    Raises:
      LaunchError: if there is no mpiexec, or no mpi4py.
    """
    return _Run(job, show, report).outcome()


@contextlib.contextmanager
def _rendezvous(job: Job) -> Iterator[dict[str, str]]:
    """Yield the variables by which ranks without MPI meet (`jaxccomp.init`)."""
    found = {"JAXCCOMP_SECRET": secrets.token_hex(16), "JAXCCOMP_JOIN": "", ssh.COORDINATOR: ""}
    with contextlib.ExitStack() as stack:
        if not job.hosts:  # otherwise ssh.py sets it, with a port of the first host
            found[ssh.COORDINATOR] = f"127.0.0.1:{stack.enter_context(reserved_port())}"
        yield found | {name: job.environment[name] for name in found if name in job.environment}


class _Run:
    """The state of a running job. One thread uses it; other threads send events."""

    def __init__(self, job: Job, show: Show, report: Report):
        self.job, self.show, self.report = job, show, report
        self.mark = f"JAXCCOMP_RUN={uuid.uuid4().hex}"
        self.shared_files = leftovers.SharedFiles(self.mark)
        self.is_over = threading.Event()
        self.events: queue.SimpleQueue[tuple] = queue.SimpleQueue()
        # Bounds queued lines: a rank that prints faster than the terminal blocks, as on a pipe.
        self.room = threading.Semaphore(_WAITING_LINES)
        self.pids: list[int] = []  # of the ranks' supervisors on this machine
        self.last = collections.defaultdict(lambda: collections.deque(maxlen=_LAST_LINES))
        self.done: set[int] = set()  # ranks with exit status 0
        self.ending: Outcome | None = None  # why the job is being ended
        self.aborted: int | None = None  # rank that called MPI_Abort
        self.kill_at: float | None = None
        self.hung = False  # whether mpiexec hung and was killed

    def outcome(self) -> Outcome:
        with contextlib.ExitStack() as stack:
            try:
                environ = dict(os.environ) | mpiexec.allow_root() | dict(self.job.environment)
                name, value = self.mark.split("=")
                environ[name] = value
                if self.job.transport == "ucx":
                    environ |= stack.enter_context(_rendezvous(self.job))
                command = self._command(environ)
            except errors.LaunchError:
                raise
            except RuntimeError as error:
                raise errors.LaunchError(f"ranks are started by MPI's mpiexec: {error}.") from None
            self.logs = [stack.enter_context(file) for file in self._open_logs()]
            # SimpleQueue.put may interrupt a SimpleQueue.get of the same thread.
            stack.enter_context(signals.handled(lambda n: self.events.put(("signal", n))))
            stack.enter_context(
                signals.handled(lambda _: self.events.put(("record",)), (signal.SIGUSR1,))
            )
            if number := signals.ended_by():
                return _ended_by(number)
            self.process = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # only this process gets a Ctrl-C, and forwards it
                preexec_fn=lambda: signals.die_with_parent(signal.SIGTERM),
            )
            looks = signals.start_thread(self._look_at_shared_files)
            try:
                status = self._watch()
            finally:
                with signals.uninterrupted():
                    self.is_over.set()
                    self._kill()
                    looks.join()
                    self.shared_files.remove()
        return self._described(lines.exit_status(status))

    def _command(self, environ: Mapping[str, str]) -> list[str]:
        """Return the command line that starts the ranks: mpiexec or a replacement."""
        job = self.job
        launcher = "0" if job.hosts else str(os.getpid())
        start_up = ["-IS", _START, "supervise", launcher, self.mark, job.settings.to_json()]
        rank = [*start_up, job.python, PROGRAM, *job.program]
        ranks, here = str(job.ranks), [sys.executable, "-IS", _START]
        if job.transport == "mpi":
            vendor = mpiexec.vendor(job.python)[0]
            if not job.hosts and (why := environment.why_too_little_memory(vendor, job.ranks)):
                raise errors.LaunchError(f"{why}.")
            return mpiexec.command(
                job.ranks,
                rank,
                python=job.python,
                hosts=job.hosts,
                environ=environ,
                carried=list(job.environment),
            )
        if not job.hosts:
            return [*here, "processes", ranks, job.python, *rank]
        if why := ssh.why_missing():
            raise errors.LaunchError(f"ranks on other hosts are started by ssh, but {why}.")
        hosts, names = ",".join(job.hosts), ",".join(job.environment)
        return [*here, "ssh", ranks, hosts, names, self.mark, job.python, *rank]

    def _described(self, status: int) -> Outcome:
        """Return the outcome; call it after all lines printed before a failure have arrived."""
        why = self.ending
        if why is None and (status == 0 or self.hung):
            return Outcome(0)
        if why is None:
            starter = "mpiexec" if self.job.transport == "mpi" else "what starts the ranks"
            text = f"{starter} {lines.described(status)}, "
            if self.job.transport != "mpi":
                text += "and no rank has said why"
            elif self.aborted is None:
                # MPI_Abort kills ranks immediately: the last lines of a rank may be missing.
                text += "and no rank has said why: MPI itself, or one that called MPI_Abort"
            else:
                text += f"as rank {self.aborted} called MPI_Abort"
            why = Outcome(status, text, self.aborted, by_ranks=True)
        elif why.rank is None:  # the deadline, or a signal
            return why
        said = "".join(f"\n  {line}" for line in self.last[why.rank])
        return dataclasses.replace(why, error=f"{why.error}:{said}" if said else why.error)

    def _open_logs(self) -> list[IO[str]]:
        folder = self.job.log_dir
        if folder is None:
            return []
        mode = "a" if self.job.restarts else "w"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return [
                open(folder / f"rank-{rank}.txt", mode, encoding="utf-8")
                for rank in range(self.job.ranks)
            ]
        except OSError as error:
            raise errors.LaunchError(f"no logs can be written: {error}.") from None

    def _watch(self) -> int:
        """Handle events until mpiexec has ended and its streams are read; return its status."""
        streams = (self.process.stdout, self.process.stderr)
        for number, stream in enumerate(streams):
            signals.start_thread(self._read, stream, bool(number))
        signals.start_thread(self._wait)
        limit = self.job.timeout_seconds
        timeout_at = None if limit is None else time.monotonic() + limit
        open_streams, status = len(streams), None
        while open_streams or status is None:
            times = [each for each in (timeout_at, self.kill_at) if each is not None]
            wait = max(min(times) - time.monotonic(), 0) if times else None
            try:
                event = self.events.get(timeout=wait)
            except queue.Empty:
                event = None
            now = time.monotonic()
            if self.kill_at is not None and now >= self.kill_at:
                # Once mpiexec has ended, read its remaining output first.
                if status is not None and event is None:
                    return status  # a process of another user holds a stream open
                if status is None:
                    self.hung = True
                    self._kill()
                    self.kill_at = None
            elif timeout_at is not None and now >= timeout_at:
                timeout_at = None
                error = f"not done after {limit:g} s: all ranks were ended"
                self._end(Outcome(TIMED_OUT, error), signal.SIGTERM)
            if event is None:
                continue
            kind, *values = event
            if kind == "line":
                self.room.release()
                self._line(*values)
            elif kind == "closed":
                open_streams -= 1
            elif kind == "ended":
                (status,) = values
                # Ranks end before mpiexec: a process that still holds a stream is not a rank.
                leftovers.kill(self.mark)
                self.kill_at = time.monotonic() + 1
            elif kind == "signal":
                (number,) = values
                self._end(_ended_by(number), number)
            elif kind == "record":
                for pid in self.pids:
                    _send(pid, RECORD)
        return status

    def _look_at_shared_files(self) -> None:
        # MPI creates files when ranks start and when they first communicate. Killed ranks no longer
        # map the files, so sample while they run; with growing pauses, as ranks may start slowly.
        pause = _FIRST_LOOK_SECONDS
        while not self.is_over.wait(pause):
            self.shared_files.look()
            pause = min(1.2 * pause, _LAST_LOOK_SECONDS)

    def _read(self, stream: IO[bytes], is_error: bool) -> None:
        for line in stream:
            self.room.acquire()
            self.events.put(("line", line, is_error))
        self.events.put(("closed",))

    def _wait(self) -> None:
        self.events.put(("ended", self.process.wait()))

    def _line(self, raw: bytes, is_error: bool) -> None:
        rank, text, told = lines.parse(raw)
        if rank is not None and rank >= self.job.ranks:  # mpiexec's own line
            rank, text, told = None, raw, None
        if rank is not None and told is not None:
            if "pid" in told:
                self._joined(told["pid"])
            elif "live" in told:
                self.report(rank, told["live"])
            elif "trouble" in told:
                if self.ending is None:
                    why = f"{told['trouble']}; all ranks were ended"
                    self._end(Outcome(told.get("status", 1), why), signal.SIGTERM)
            elif "status" in told and self.ending is None:
                self._ended(rank, told["status"])
            if not text:
                return
        line = text.decode("utf-8", "replace").rstrip("\r\n")
        self.last[rank].append(line)
        if self.aborted is None:
            self.aborted = lines.aborted(line)
        # After the first failure, mpiexec only repeats that a rank has failed.
        if rank is not None or self.ending is None:
            self.show(rank, line, is_error)
        if rank is not None and self.logs:
            self.logs[rank].write(line + "\n")
            self.logs[rank].flush()

    def _joined(self, pid: int) -> None:
        if not self.job.hosts:
            self.pids.append(pid)
            if self.ending is not None:
                _send(pid, signal.SIGTERM)

    def _ended(self, rank: int, status: int) -> None:
        if status:
            text = f"rank {rank} {lines.described(status)}; all ranks were ended"
            self._end(Outcome(status, text, rank, by_ranks=True), signal.SIGTERM)
            return
        self.done.add(rank)
        if len(self.done) == self.job.ranks:
            # Open MPI's launcher may hang after programs that call no MPI and end at once.
            self.kill_at = time.monotonic() + _GRACE_SECONDS

    def _end(self, why: Outcome, number: int) -> None:
        """Ask all ranks to end; a second call kills them."""
        if self.ending is not None:
            self.kill_at = time.monotonic()
            return
        self.ending = why
        self.kill_at = time.monotonic() + _GRACE_SECONDS
        self.shared_files.look()
        for pid in self.pids:
            _send(pid, FROM_LAUNCHER)
            _send(pid, number)
        # Ranks on other hosts, and ranks that are still starting, get the signal from mpiexec.
        if self.job.hosts or len(self.pids) < self.job.ranks:
            _send(self.process.pid, number)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        leftovers.kill(self.mark)


def _ended_by(number: int) -> Outcome:
    return Outcome(128 + number, f"ended by {signal.Signals(number).name}")


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

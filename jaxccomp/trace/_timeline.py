"""Timelines: when each task of the engine's schedules ran in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxccomp import _jax, comm, errors
from jaxccomp._native import engine, json_files

KINDS = (
    *("encode", "send", "recv", "decode", "merge", "copy", "residual", "number", "library"),
    *("call", "compute"),
)
_CODING = ("encode", "decode", "merge", "copy", "residual")
_WIRE = ("send", "recv", "library")
# Operations of XLA with such names are calls of this package.
_CALL = "jaxccomp_"
_COLUMNS = 72
_SHADES = " .:-=+*#"
# The format of the files, and its version.
FORMAT = "jaxccomp.trace"
VERSION = 2


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of a schedule, or with ``record(xla=True)`` one operation of XLA.

    Attributes:
      begin: seconds since the recording started. A transfer begins when it is handed to the
        transport, where it may wait for earlier ones.
      end: likewise.
      operation: number of the operation, counted from the start of the recording; -1 for XLA's.
      collective: "bcast", for instance; the name of XLA's operation.
      kind: one of `KINDS`; "number" and "library" with backend="mpi" (docs/backends.md). With
        ``record(xla=True)`` also "call", a call of this package from XLA's program until its
        result is there, and "compute", any other operation of XLA.
      peer: the rank at the other end of a transfer; -1 for computations.
      lane: number of the chunk that it works on.
      value_bytes: size of its raw values.
      message: of a transfer, the message's number: the same at both ends, and unique while both
        ranks record; 0 for computations.
      payload_bytes: of a transfer, the encoded bytes that it moves; 0 for computations.
      codec: the codec of the operation; "" for XLA's.
      where: the line of the operation in the program, such as "train.py:41"; "" for XLA's.
    """

    begin: float
    end: float
    operation: int
    collective: str
    kind: str
    peer: int
    lane: int
    value_bytes: int
    message: int = 0
    payload_bytes: int = 0
    codec: str = ""
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Origin:
    """The metadata of a recording: where and when.

    Attributes:
      rank: of this process, in the world.
      size: the number of ranks of the world.
      host: the name of the machine.
      clock: identifies the clock: processes with equal values share ``CLOCK_MONOTONIC``.
      begin_ns: that clock at the start of the recording, in nanoseconds.
      unix_ns: Unix time at the start, in nanoseconds; between hosts it may differ by milliseconds
        or more.
    """

    rank: int = 0
    size: int = 1
    host: str = ""
    clock: str = ""
    begin_ns: int = 0
    unix_ns: int = 0


@dataclasses.dataclass
class Timeline:
    """A recording; filled when it ends.

    Attributes:
      tasks: in the order in which they ended.
      origin: its metadata.
    """

    tasks: list[Task] = dataclasses.field(default_factory=list)
    origin: Origin = Origin()

    def busy(self, kinds: Sequence[str]) -> float:
        """Seconds during which at least one task of these kinds ran."""
        return sum(end - begin for begin, end in _union(self._spans(kinds)))

    @property
    def seconds(self) -> float:
        """Seconds from the begin of the first task to the end of the last."""
        if not self.tasks:
            return 0.0
        return max(task.end for task in self.tasks) - min(task.begin for task in self.tasks)

    def overlapped(self) -> float:
        """The fraction of the coding time (0 to 1) during which a transfer ran as well."""
        coding, wire = self.busy(_CODING), self.busy(_WIRE)
        both = coding + wire - self.busy(_CODING + _WIRE)
        return max(both, 0.0) / coding if coding else 0.0  # rounding may make `both` negative

    def save(self, path: str) -> None:
        """Writes Chrome's trace event format: one row for each kind of task.

        Files of several ranks become one by `jaxccomp.trace.merge`.

        Args:
          path: the file, for https://ui.perfetto.dev.

        Raises:
          OSError: if it cannot be written.
        """
        rank = self.origin.rank
        events = [event_of(task, rank) for task in self.tasks]
        about = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self.origin)}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"otherData": about, "traceEvents": names_of(rank) + events}, file)

    def __str__(self) -> str:
        if not self.tasks:
            return "no tasks were recorded"
        start = min(task.begin for task in self.tasks)
        width = self.seconds / _COLUMNS or 1e-9
        lines = [f"{self.seconds * 1e3:.2f} ms, {width * 1e3:.3f} ms per column"]
        for kind in KINDS:
            spans = _union(self._spans((kind,)))
            if not spans:
                continue
            cells = [_covered(spans, start + i * width, width) for i in range(_COLUMNS)]
            shades = "".join(_SHADES[round(cell * (len(_SHADES) - 1))] for cell in cells)
            lines.append(f"{kind:<7}|{shades}| {self.busy((kind,)) / self.seconds:4.0%} busy")
        lines.append(
            f"coding {self.busy(_CODING) * 1e3:.2f} ms, wire {self.busy(_WIRE) * 1e3:.2f} ms; "
            f"{self.overlapped():.0%} of the coding while something was on the wire"
        )
        return "\n".join(lines)

    def _spans(self, kinds: Sequence[str]) -> list[tuple[float, float]]:
        return [(task.begin, task.end) for task in self.tasks if task.kind in kinds]


@contextlib.contextmanager
def record(xla: bool = False) -> Iterator[Timeline]:
    """Records the tasks of operations that start and end within the block, at most a million.

    Costs about 0.1 us per task. Wait for results (``block_until_ready``) before the block ends.
    Only one recording can run at a time.

    Args:
      xla: record the operations that XLA executes on CPUs as well, by JAX's profiler, on the same
        clock: computations, and how long each call of this package takes from the program's
        view. It costs about a microsecond per operation, and seconds at the end of the block.

    Raises:
      EngineUnavailableError: without the native engine.
      JaxHookError: with ``xla``, if this JAX's profiles have another form.
      RuntimeError: with ``xla``, if JAX's profiler runs already.

    Example:
      >>> with jaxccomp.trace.record(xla=True) as timeline:            # doctest: +SKIP
      ...     step(x).block_until_ready()
      >>> print(timeline)  # when XLA computed, and when wire and codecs were busy  # doctest: +SKIP
    """
    comm.init()
    core = engine.load()
    world, host, clock = comm.world(), platform.node(), _clock()
    executed: list[_jax.Executed] = []
    begin_ns, unix_ns = core.start_trace(), time.time_ns()
    timeline = Timeline(origin=Origin(world.rank, world.size, host, clock, begin_ns, unix_ns))
    try:
        with _jax.profiled() if xla else contextlib.nullcontext(executed) as executed:
            yield timeline
    finally:
        tasks = [Task(begin * 1e-9, end * 1e-9, *rest) for begin, end, *rest in core.stop_trace()]
        tasks += [_task_of_xla(each, begin_ns) for each in executed]
        timeline.tasks += sorted(tasks, key=lambda task: task.end)


def _task_of_xla(each: _jax.Executed, begin_ns: int) -> Task:
    kind = "call" if each.name.startswith(_CALL) else "compute"
    begin, end = ((at - begin_ns) * 1e-9 for at in (each.begin_ns, each.end_ns))
    return Task(begin, end, -1, each.name, kind, -1, 0, 0)


def names_of(rank: int) -> list[dict[str, Any]]:
    """The names of a rank's rows, as events."""
    return [
        {"name": "thread_name", "ph": "M", "pid": rank, "tid": i, "args": {"name": kind}}
        for i, kind in enumerate(KINDS)
    ]


def event_of(task: Task, rank: int) -> dict[str, Any]:
    """A task, as an event."""
    args: dict[str, Any] = {
        "operation": task.operation,
        "lane": task.lane,
        "peer": task.peer,
        "bytes": task.value_bytes,
    }
    if task.where or task.codec:
        args |= {"codec": task.codec, "where": task.where}
    if task.message:
        args["payload_bytes"] = task.payload_bytes
        args["message"] = f"{task.message:016x}"  # many JSON readers lack 64-bit integers
    return {
        "name": task.collective if task.operation < 0 else f"{task.kind} {task.lane}",
        "cat": task.collective,
        "ph": "X",
        "ts": task.begin * 1e6,
        "dur": (task.end - task.begin) * 1e6,
        "pid": rank,
        "tid": KINDS.index(task.kind),
        "args": args,
    }


def _clock() -> str:
    """Identifies the kernel's boot and the time namespace, within which processes share a clock."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return f"{platform.node()} process {os.getpid()}"


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The spans, with touching and overlapping ones joined."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _covered(spans: Sequence[tuple[float, float]], begin: float, width: float) -> float:
    """The fraction of [begin, begin + width) that spans cover."""
    covered = sum(max(0.0, min(end, begin + width) - max(start, begin)) for start, end in spans)
    return min(covered / width, 1.0)


# --- Files of `Timeline.save`; their contents are untrusted and checked ---------------------------

_SAVE = (
    "Give files that `Timeline.save` has written, within "
    "`with jaxccomp.trace.record() as timeline:`"
)
MAX_INTEGER = 1 << 62  # nanoseconds, bytes
_MAX_TEXT = 4096
MAX_RANKS = 1 << 24
_NUMBER = re.compile("[0-9a-f]{16}")


def read(path: str | os.PathLike[str]) -> Timeline:
    """Reads a saved timeline.

    Raises:
      InvalidArgumentError: if the file is missing, cut, altered or of another format.
    """
    place = f"the trace {os.fspath(path)!r}"
    content = json_files.loads(json_files.read(path, "trace", _SAVE, None), place)
    about = content.get("otherData") if isinstance(content, dict) else None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else None
        what = f", but of format {found!r:.40}" if found else ""
        raise errors.InvalidArgumentError(f"{place} is no trace of one rank{what}. {_SAVE}.")
    if about.get("version") != VERSION:
        raise errors.InvalidArgumentError(
            f"{place} has version {about.get('version')!r:.20}; this release reads version "
            f"{VERSION}. Record the trace again."
        )
    events = content.get("traceEvents")
    if not isinstance(events, list):
        raise errors.InvalidArgumentError(f"{place} has no list of traceEvents.")
    tasks = [
        _task(event, f"{place}: traceEvents[{i}]")
        for i, event in enumerate(events)
        if not (isinstance(event, dict) and event.get("ph") == "M")  # names of rows
    ]
    return Timeline(tasks, _origin(about, place))


def _origin(about: Mapping[str, Any], place: str) -> Origin:
    values: dict[str, Any] = {
        field.name: about.get(field.name) for field in dataclasses.fields(Origin)
    }
    for name in ("host", "clock"):
        check_text(values, name, place)
    check_whole(values, "size", 1, MAX_RANKS, place)
    check_whole(values, "rank", 0, values["size"] - 1, place)
    for name in ("begin_ns", "unix_ns"):
        check_whole(values, name, 0, MAX_INTEGER, place)
    return Origin(**values)


def _task(event: Any, place: str) -> Task:
    args = event.get("args") if isinstance(event, dict) else None
    if not isinstance(args, dict) or event.get("ph") != "X":
        raise errors.InvalidArgumentError(f"{place} is no task: a task has args, and ph is 'X'.")
    for name in ("ts", "dur"):
        value = event.get(name)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 <= value < MAX_INTEGER
            or not math.isfinite(value)
        ):
            raise errors.InvalidArgumentError(
                f"{place}: {name} is a number of microseconds from 0 on, not {value!r:.40}."
            )
    check_text(event, "cat", place)
    check_whole(event, "tid", 0, len(KINDS) - 1, place)
    check_whole(args, "peer", -1, MAX_RANKS, place)
    check_whole(args, "operation", -1, MAX_INTEGER, place)
    for name in ("lane", "bytes"):
        check_whole(args, name, 0, MAX_INTEGER, place)
    args = {"payload_bytes": 0, "codec": "", "where": ""} | args
    check_whole(args, "payload_bytes", 0, MAX_INTEGER, place)
    for name in ("codec", "where"):
        check_text(args, name, place)
    message = args.get("message", "0" * 16)
    if not isinstance(message, str) or not _NUMBER.fullmatch(message):
        raise errors.InvalidArgumentError(
            f"{place}: message is 16 hexadecimal digits, not {message!r:.40}."
        )
    begin = event["ts"] * 1e-6
    return Task(
        begin=begin,
        end=begin + event["dur"] * 1e-6,
        operation=args["operation"],
        collective=event["cat"],
        kind=KINDS[event["tid"]],
        peer=args["peer"],
        lane=args["lane"],
        value_bytes=args["bytes"],
        message=int(message, 16),
        payload_bytes=args["payload_bytes"],
        codec=args["codec"],
        where=args["where"],
    )


def check_text(values: Mapping[str, Any], name: str, place: str) -> None:
    """Raise unless ``values[name]`` is a text of limited length; ``place`` is for the error."""
    value = values.get(name)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise errors.InvalidArgumentError(
            f"{place}: {name} is a text of at most {_MAX_TEXT} characters, not {value!r:.40}."
        )


def check_whole(values: Mapping[str, Any], name: str, lower: int, upper: int, place: str) -> None:
    """Raise unless ``values[name]`` is an integer within bounds; ``place`` is for the error."""
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not lower <= value <= upper:
        raise errors.InvalidArgumentError(
            f"{place}: {name} is a whole number from {lower} to {upper}, not {value!r:.40}."
        )

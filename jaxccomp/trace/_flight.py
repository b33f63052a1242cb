"""The flight recorder: the last operations of each rank, and which rank waits for which."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxccomp import comm, errors
from jaxccomp._native import engine, json_files, terminal
from jaxccomp.trace._timeline import MAX_INTEGER, MAX_RANKS, check_text, check_whole

_FORMAT = "jaxccomp.flight"
_VERSION = 1
_OPEN, _OK = "OPEN", "OK"
_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class FlightOperation:
    """An operation of a rank: open, or one of the last that have ended.

    Attributes:
      operation: such as "allreduce(mean, float32[3])".
      where: the line of the call, such as "train.py:41"; "" if it is not known.
      communicator: its name; "" if the engine has refused the call.
      ranks: the ranks of the communicator, as ranks of the world.
      operand_bytes: the size of the operands.
      sent_bytes: encoded bytes sent so far.
      begin: Unix time of the call, in seconds.
      end: Unix time of the end; None while the operation is open.
      status: "OPEN", "OK", or the code of its error, such as "DEADLINE_EXCEEDED".
      error: the text of its error.
      waits_for: the ranks of the world whose messages it waits for, or has waited for when it
        failed.
      match: identifies the operation: equal on all ranks; "" for messages, and between devices of
        one process.
      thread: identifies the Python thread whose operations `sequence` counts.
      sequence: number of the launch, or of the operation in program order, on the communicator.
    """

    operation: str
    where: str
    communicator: str
    ranks: tuple[int, ...]
    operand_bytes: int
    sent_bytes: int
    begin: float
    end: float | None
    status: str
    error: str
    waits_for: tuple[int, ...]
    match: str
    thread: str
    sequence: int

    @property
    def text(self) -> str:
        """The operation and its line."""
        return f"{self.operation} at {self.where}" if self.where else self.operation


@dataclasses.dataclass(frozen=True)
class Flight:
    """The record of one rank; ``str()`` shows the latest operations.

    Attributes:
      rank: the rank in the world.
      size: the number of ranks of the world.
      host: the name of its machine.
      pid: the number of its process.
      time: Unix time of the record, in seconds.
      reason: why the file was written: "SIGUSR1", or the error; "" for a record of `flight`.
      operations: the last 1,000 that have ended, then the open ones, the oldest first.
    """

    rank: int
    size: int
    host: str
    pid: int
    time: float
    reason: str
    operations: tuple[FlightOperation, ...]

    def __str__(self) -> str:
        rows = [("status", "seconds", "operation", "waits for")]
        for each in self.operations[-_SHOWN:]:
            seconds = (self.time if each.end is None else each.end) - each.begin
            rows.append((each.status, f"{seconds:.6f}", each.text, _ranks(each.waits_for)))
        count = sum(each.end is None for each in self.operations)
        title = f"rank {self.rank} of {self.size}: {len(self.operations)} operations, {count} open"
        return "\n".join([title, *terminal.lines(rows, "<>")])


def flight() -> Flight:
    """Return the last 1,000 operations of this rank, and its open ones.

    The record is always on, and allocates nothing for operations that succeed. With the option
    ``flight_folder``, the rank also writes it to a file, which ``python -m jaxccomp flight`` reads
    (docs/debugging.md).

    Raises:
      EngineUnavailableError: without the native engine.

    Example:
      >>> import jax.numpy as jnp
      >>> _ = jaxccomp.allreduce(jnp.ones(1000, jnp.float32)).block_until_ready()
      >>> last = jaxccomp.trace.flight().operations[-1]
      >>> last.operation, last.status, last.operand_bytes
      ('allreduce(sum, float32[1000])', 'OK', 4000)
    """
    comm.init()
    return _parsed(engine.load().flight(), "the record of this process")


# --- Files, which other processes have written; their contents are untrusted and checked ----------

_NAME = re.compile(r"flight-(\d{1,8})\.json")
_MAX_FILES = 1 << 16
_MAX_BYTES = 1 << 26
_MAX_OPERATIONS = 1 << 20
_CODE = re.compile(r"[A-Z_]{1,40}")
_REMEDY = (
    "Start the program with JAXCCOMP_FLIGHT_FOLDER=FOLDER: each rank writes a file there when an "
    "operation fails, and when it receives SIGUSR1"
)


def read_folder(folder: str | os.PathLike[str]) -> list[Flight]:
    """Read the files of all ranks, ordered by rank.

    Raises:
      InvalidArgumentError: if there are none, or if a file is not valid.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
    except OSError as error:
        raise errors.InvalidArgumentError(
            f"the folder {os.fspath(folder)!r} cannot be read: {error}. {_REMEDY}."
        ) from None
    if not names or len(names) > _MAX_FILES:
        raise errors.InvalidArgumentError(
            f"the folder {os.fspath(folder)!r} has {len(names) or 'no'} files flight-RANK.json; "
            f"1 to {_MAX_FILES} are allowed. {_REMEDY}."
        )
    flights: dict[int, Flight] = {}
    for name in names:
        path = os.path.join(folder, name)
        found = _parsed(json_files.read(path, "file", _REMEDY, _MAX_BYTES), f"the file {path!r}")
        number = int(name.removeprefix("flight-").removesuffix(".json"))
        if found.rank != number or number in flights:
            raise errors.InvalidArgumentError(
                f"the file {path!r} is of rank {found.rank}; rename it to flight-{found.rank}.json,"
                " or remove it."
            )
        first = next(iter(flights.values()), found)
        if found.size != first.size:
            raise errors.InvalidArgumentError(
                f"the file {path!r} is of {found.size} ranks, and the file of rank {first.rank} of "
                f"{first.size}: they are of different runs. Remove the files of earlier runs."
            )
        flights[number] = found
    return [flights[rank] for rank in sorted(flights)]


def _parsed(data: bytes, place: str) -> Flight:
    # Errors cut off by length may end within a character.
    content = json_files.loads(data.decode("utf-8", "replace").encode(), place)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise errors.InvalidArgumentError(f"{place} is no record of operations. {_REMEDY}.")
    if content.get("version") != _VERSION:
        raise errors.InvalidArgumentError(
            f"{place} has version {content.get('version')!r:.20}; this release reads version "
            f"{_VERSION}."
        )
    check_whole(content, "size", 1, MAX_RANKS, place)
    check_whole(content, "rank", 0, content["size"] - 1, place)
    for name in ("pid", "unix_ns"):
        check_whole(content, name, 0, MAX_INTEGER, place)
    for name in ("host", "reason"):
        check_text(content, name, place)
    communicators = [
        _communicator(each, content["size"], f"{place}: communicators[{i}]")
        for i, each in enumerate(_list(content, "communicators", _MAX_OPERATIONS, place))
    ]
    operations = [
        _operation(each, communicators, content["size"], f"{place}: operations[{i}]")
        for i, each in enumerate(_list(content, "operations", _MAX_OPERATIONS, place))
    ]
    return Flight(
        rank=content["rank"],
        size=content["size"],
        host=_printable(content["host"]),
        pid=content["pid"],
        time=content["unix_ns"] * 1e-9,
        reason=_printable(content["reason"]),
        operations=tuple(operations),
    )


def _communicator(content: Any, size: int, place: str) -> tuple[str, tuple[int, ...]]:
    if not isinstance(content, dict):
        raise errors.InvalidArgumentError(f"{place} is no object.")
    check_text(content, "name", place)
    return _printable(content["name"]), _rank_list(content, "ranks", size, place)


def _operation(
    content: Any,
    communicators: Sequence[tuple[str, tuple[int, ...]]],
    size: int,
    place: str,
) -> FlightOperation:
    if not isinstance(content, dict):
        raise errors.InvalidArgumentError(f"{place} is no object.")
    for name in ("text", "thread", "match", "status", "error"):
        check_text(content, name, place)
    for name in ("sequence", "operand_bytes", "sent_bytes", "begin_ns"):
        check_whole(content, name, 0, MAX_INTEGER, place)
    communicator: tuple[str, tuple[int, ...]] = ("", ())
    if content.get("communicator") is not None:
        check_whole(content, "communicator", 0, len(communicators) - 1, place)
        communicator = communicators[content["communicator"]]
    if content.get("end_ns") is not None:
        check_whole(content, "end_ns", 0, MAX_INTEGER, place)
    if not _CODE.fullmatch(content["status"]):
        raise errors.InvalidArgumentError(
            f"{place}: status is {_OPEN}, {_OK} or a code, not {content['status']!r:.40}."
        )
    operation, _, where = _printable(content["text"]).partition(") at ")
    return FlightOperation(
        operation=operation + ")" if where else operation,
        where=where,
        communicator=communicator[0],
        ranks=communicator[1],
        operand_bytes=content["operand_bytes"],
        sent_bytes=content["sent_bytes"],
        begin=content["begin_ns"] * 1e-9,
        end=None if content.get("end_ns") is None else content["end_ns"] * 1e-9,
        status=content["status"],
        error=_printable(content["error"]),
        waits_for=_rank_list(content, "waits_for", size, place),
        match=content["match"],
        thread=content["thread"],
        sequence=content["sequence"],
    )


def _list(content: Mapping[str, Any], name: str, limit: int, place: str) -> list[Any]:
    value = content.get(name)
    if not isinstance(value, list) or len(value) > limit:
        raise errors.InvalidArgumentError(f"{place}: {name} is a list of at most {limit} entries.")
    return value


def _rank_list(content: Mapping[str, Any], name: str, size: int, place: str) -> tuple[int, ...]:
    ranks = _list(content, name, MAX_RANKS, place)
    for i, rank in enumerate(ranks):
        check_whole({f"{name}[{i}]": rank}, f"{name}[{i}]", 0, size - 1, place)
    return tuple(ranks)


def _printable(text: str) -> str:
    """Replace control characters, which could change the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


# --- The report -----------------------------------------------------------------------------------


def report(flights: Sequence[Flight]) -> str:
    """Describe which rank waits for which, in which operation, and which rank never reached it."""
    by_rank = {each.rank: each for each in flights}
    size = flights[0].size
    absent = [rank for rank in range(size) if rank not in by_rank]
    lines = [f"files of {len(flights)} of {size} ranks"]
    if absent:
        lines[0] += f"; none of {_ranks(absent)}"
    latest = max(each.time for each in flights)
    for each in flights:
        if latest - each.time > 60:
            lines.append(
                f"the file of rank {each.rank} is {latest - each.time:.0f} s older than the latest"
            )
    waits: dict[int, set[int]] = defaultdict(set)
    described = [_unfinished(each, by_rank, waits) for each in _instances(flights)]
    if not described:
        return "\n".join([*lines, "no operation is open, and none has failed"])
    for each in described[:_SHOWN]:
        lines += ["", *each]
    if len(described) > _SHOWN:
        lines += ["", f"and {len(described) - _SHOWN} more operations"]
    return "\n".join([*lines, "", *_conclusion(waits, by_rank)])


# An operation on several ranks: each rank's part of it.
_Instance = list[tuple[int, FlightOperation]]


def _instances(flights: Iterable[Flight]) -> list[_Instance]:
    """The operations that are open or have failed on some rank, the oldest first."""
    found: dict[tuple[Any, ...], _Instance] = {}
    for each in flights:
        for number, operation in enumerate(each.operations):
            if operation.status != _OK:
                alone = () if operation.match else (each.rank, number)
                key = (operation.communicator, operation.match, *alone)
                found.setdefault(key, []).append((each.rank, operation))
    return sorted(found.values(), key=lambda instance: min(each.begin for _, each in instance))


def _unfinished(
    instance: _Instance, by_rank: Mapping[int, Flight], waits: dict[int, set[int]]
) -> list[str]:
    """The lines about one operation; adds to ``waits`` for which ranks each rank waits."""
    first = instance[0][1]
    where = f" on {first.communicator!r}" if first.communicator else ", refused"
    lines = [f"{first.text}{where}"]
    waiting: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    seconds: dict[tuple[str, tuple[int, ...]], float] = {}
    for rank, each in instance:
        state = each.status, each.waits_for
        waiting.setdefault(state, []).append(rank)
        lasted = (by_rank[rank].time if each.end is None else each.end) - each.begin
        seconds[state] = max(lasted, seconds.get(state, 0.0))
        waits[rank] |= {peer for peer in each.waits_for if peer != rank}
    for (status, peers), ranks in waiting.items():
        for_peers = f" for {_ranks(peers)}" if peers else ""
        took = f"{seconds[status, peers]:.1f} s"
        verb = "waits" if len(set(ranks)) == 1 else "wait"
        if status == _OPEN:
            lines.append(f"  {_ranks(ranks)} {verb}{for_peers}, since {took}")
        elif first.communicator:
            waited = f" waited{for_peers}" if peers else ""
            lines.append(f"  {_ranks(ranks)}{waited}, and failed after {took}: {status}")
    texts = {each.text for _, each in instance} - {first.text}
    lines += [f"  on other ranks it is {text}" for text in sorted(texts)[:3]]
    failed = next((each for _, each in instance if each.error), None)
    if failed is not None:
        lines.append(f"  error: {failed.error}")
    if not first.match:
        return lines
    others: dict[str, list[int]] = {}
    for rank in sorted(set(first.ranks) - {rank for rank, _ in instance}):
        others.setdefault(_state(rank, first, by_rank), []).append(rank)
    for state, ranks in others.items():
        verb = "has" if len(ranks) == 1 else "have"
        lines.append(f"  {_ranks(ranks)} {verb} {state}")
    return lines


_NEVER = "never reached it"


def _state(rank: int, operation: FlightOperation, by_rank: Mapping[int, Flight]) -> str:
    """Describe a rank that has no open part of the operation: it has ended it, or never began."""
    if rank not in by_rank:
        return "written no file"
    for each in by_rank[rank].operations:
        same = (each.communicator, each.thread) == (operation.communicator, operation.thread)
        if same and (each.match == operation.match or each.sequence > operation.sequence):
            return "ended it"
    return _NEVER


def _conclusion(waits: Mapping[int, set[int]], by_rank: Mapping[int, Flight]) -> list[str]:
    """The ranks for which others wait and that wait for none."""
    wanted: dict[int, list[int]] = defaultdict(list)
    for rank, peers in sorted(waits.items()):
        for peer in peers:
            wanted[peer].append(rank)
    lines = []
    for rank in sorted(set(wanted) - {rank for rank, peers in waits.items() if peers}):
        said = f"{_ranks(wanted[rank])} wait{'s' * (len(wanted[rank]) == 1)} for rank {rank}, which"
        if rank not in by_rank:
            lines.append(
                f"{said} has written no file: it has died, or has neither received SIGUSR1 nor "
                "learned of a failure"
            )
            continue
        flight = by_rank[rank]
        ended = [each for each in flight.operations if each.end is not None]
        last = "it has called no operation"
        if ended:
            before = flight.time - (ended[-1].end or 0.0)
            last = f"the last one, {ended[-1].text}, ended {before:.1f} s before its file"
        lines.append(
            f"{said} is in no operation that waits: {last}. See where its Python is: "
            f"py-spy dump --pid {flight.pid} on {flight.host}"
        )
    if not lines and any(waits.values()):
        ranks = _ranks(sorted(rank for rank, peers in waits.items() if peers))
        lines.append(
            f"{ranks} wait for each other: call operations on a communicator in the same order on "
            "all ranks"
        )
    return lines


def _ranks(ranks: Iterable[int]) -> str:
    """Format ranks: "rank 3", "ranks 0-2, 5"."""
    numbers = sorted(set(ranks))
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    shown = ", ".join(
        f"{part[0]}-{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts
    )
    return f"{'ranks' if len(numbers) > 1 else 'rank'} {shown}" if numbers else ""

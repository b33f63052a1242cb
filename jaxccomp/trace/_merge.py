"""Merges the ranks' traces into one."""

from __future__ import annotations

import dataclasses
import heapq
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxccomp import errors
from jaxccomp.trace._timeline import FORMAT, Task, Timeline, event_of, names_of, read

# --- Clock offsets between hosts, estimated from messages as NTP does -----------------------------
# A message is sent at s by the sender's clock, and arrives at r by the receiver's. Then r - s is
# the latency (at least 0) plus the clock offset. The fastest messages in both directions bound
# the offset from both sides. The estimate is the middle of the bounds; its uncertainty is half
# their distance.

# An upper bound for the drift between two clocks, in seconds per second.
_MAX_DRIFT = 1e-3
_MIN_SECONDS = 1e-3


@dataclasses.dataclass(frozen=True)
class ClockOffset:
    """The offset of a clock to the lowest rank's clock.

    Attributes:
      ranks: the ranks that share this clock.
      hosts: the names of their machines.
      seconds: the correction that is added to their ``CLOCK_MONOTONIC``. That clock counts from
        boot, so the correction may be days.
      uncertainty_seconds: of ``seconds``, plus or minus; 0 for the lowest rank's clock, None if
        unknown.
      by: "reference" for the lowest rank's clock; "messages" if estimated from messages between
        hosts; "wall clock" without messages in both directions: by the hosts' time of day, which
        may differ by milliseconds or more.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    seconds: float
    uncertainty_seconds: float | None
    by: str


class Shift(NamedTuple):
    """The correction to add to a clock's times, and its uncertainty; None if unknown."""

    seconds: float
    uncertainty: float | None


def shifts(
    clocks: Sequence[str], fastest: Mapping[tuple[str, str], float], seconds: float
) -> dict[str, Shift]:
    """The corrections of all clocks that messages in both directions connect to the reference.

    Args:
      clocks: all clocks, the reference first.
      fastest: by sending and receiving clock, the minimum of arrival minus send time.
      seconds: the length of the recordings, during which clocks drift.

    Raises:
      InvalidArgumentError: if messages arrive before they were sent, beyond the drift.
    """
    found = {clocks[0]: Shift(0.0, 0.0)}
    waiting = [(0.0, clocks[0])]
    done = set()
    # The path of minimum uncertainty to each clock (Dijkstra).
    while waiting:
        uncertainty, here = heapq.heappop(waiting)
        if here in done:
            continue
        done.add(here)
        for there in clocks:
            out, back = fastest.get((here, there)), fastest.get((there, here))
            if there == here or out is None or back is None:
                continue
            if out + back < -(_MIN_SECONDS + _MAX_DRIFT * seconds):
                raise errors.InvalidArgumentError(
                    f"messages arrive {-(out + back) / 2:.6f} s before they were sent: the traces "
                    "are not of one run of a program. Give traces that ranks of one run saved."
                )
            total = uncertainty + abs(out + back) / 2
            known = found.get(there)
            if known is None or known.uncertainty is None or total < known.uncertainty:
                found[there] = Shift(found[here].seconds + (back - out) / 2, total)
                heapq.heappush(waiting, (total, there))
    return found


# --- Merge ----------------------------------------------------------------------------------------


class _Message(NamedTuple):
    """Both ends of a message: the timelines and their tasks."""

    sender: Timeline
    sent: Task
    receiver: Timeline
    received: Task


@dataclasses.dataclass(frozen=True)
class Merged:
    """The result of `merge`.

    Attributes:
      ranks: the ranks whose traces were merged.
      size: the number of ranks of the program.
      clocks: the clock offsets of the hosts.
      messages: the number of messages with both ends in the traces.
    """

    ranks: tuple[int, ...]
    size: int
    clocks: tuple[ClockOffset, ...]
    messages: int

    def __str__(self) -> str:
        lines = [f"{len(self.ranks)} of {self.size} ranks, {self.messages} messages with both ends"]
        for clock in self.clocks[1:]:
            unsure = clock.uncertainty_seconds
            known = "uncertain" if unsure is None else f"+- {unsure * 1e6:.1f} us"
            lines.append(
                f"ranks {', '.join(map(str, clock.ranks))} ({', '.join(clock.hosts)}): "
                f"{clock.seconds:+.6f} s, {known}, by {clock.by}"
            )
        return "\n".join(lines)


def merge(output: str | os.PathLike[str], *traces: str | os.PathLike[str]) -> Merged:
    """Merges the traces that ranks have saved into one, on one clock.

    Ranks of a host share a clock. Offsets between hosts are estimated from messages with both ends
    in the traces; the uncertainty is half the round trip of the fastest messages, and ``otherData``
    of the file has it for each clock. Ranks of different hosts must therefore record at the same
    time, and exchange messages in both directions during the recording, as in an allreduce or a
    barrier. Drift within a recording is not corrected (about 10 us per second between hosts).

    Args:
      output: the file to write, for https://ui.perfetto.dev: a process for each rank, a row for
        each kind of task, and an arrow for each message. The file must not exist.
      *traces: files of `Timeline.save`, of one rank each.

    Returns:
      The ranks, the clock offsets and the number of messages.

    Raises:
      InvalidArgumentError: for a file that is no trace of a rank, two traces of one rank, traces of
        different runs, or an output that exists or cannot be written.

    Example:
      >>> import jax.numpy as jnp
      >>> with jaxccomp.trace.record() as timeline:
      ...     _ = jaxccomp.allreduce(jnp.ones(8)).block_until_ready()
      >>> timeline.save("rank-0.json")
      >>> jaxccomp.trace.merge("all.json", "rank-0.json").ranks
      (0,)
    """
    if not traces:
        raise errors.InvalidArgumentError("merge needs the traces of one rank or more.")
    if os.path.exists(output):
        raise errors.InvalidArgumentError(
            f"{os.fspath(output)!r} exists already. The first argument is the file to write: "
            "remove the file, or name another one."
        )
    timelines = _checked([(os.fspath(path), read(path)) for path in traces])
    messages = _messages(timelines)
    clocks, starts = _align(timelines, messages)
    merged = Merged(
        ranks=tuple(each.origin.rank for each in timelines),
        size=timelines[0].origin.size,
        clocks=clocks,
        messages=len(messages),
    )
    about = {"format": f"{FORMAT}.merged", "version": 1, **dataclasses.asdict(merged)}
    content = {"otherData": about, "traceEvents": _events(timelines, starts, messages)}
    try:
        with open(output, "x", encoding="utf-8") as file:
            json.dump(content, file)
    except OSError as error:
        raise errors.InvalidArgumentError(
            f"{os.fspath(output)!r} cannot be written: {error}."
        ) from None
    return merged


def _checked(read_from: Sequence[tuple[str, Timeline]]) -> list[Timeline]:
    """The timelines by rank; raises if they cannot be of one run of a program."""
    by_rank: dict[int, tuple[str, Timeline]] = {}
    first_path, first = read_from[0]
    for path, timeline in read_from:
        origin = timeline.origin
        if origin.size != first.origin.size:
            raise errors.InvalidArgumentError(
                f"{first_path!r} is of {first.origin.size} ranks, and {path!r} of {origin.size}: "
                "they are not of one run of a program."
            )
        if origin.rank in by_rank:
            raise errors.InvalidArgumentError(
                f"{by_rank[origin.rank][0]!r} and {path!r} are both of rank {origin.rank}; give "
                "one trace of each rank."
            )
        by_rank[origin.rank] = path, timeline
    return [by_rank[rank][1] for rank in sorted(by_rank)]


def _messages(timelines: Sequence[Timeline]) -> list[_Message]:
    """The messages with both ends in the timelines and unambiguous numbers."""
    messages = []
    sent: dict[int, list[tuple[Timeline, Task]]] = {}
    received: dict[int, list[tuple[Timeline, Task]]] = {}
    for timeline in timelines:
        numbers = Counter((task.message, task.kind) for task in timeline.tasks)
        own: dict[int, dict[str, Task]] = {}
        for task in timeline.tasks:
            if task.message and numbers[task.message, task.kind] == 1:
                own.setdefault(task.message, {})[task.kind] = task
        for number, ends in own.items():
            # Both ends in one process, between its devices: the number is unique only within it.
            if len(ends) == 2:
                messages.append(_Message(timeline, ends["send"], timeline, ends["recv"]))
                continue
            for kind, task in ends.items():
                where = sent if kind == "send" else received
                where.setdefault(number, []).append((timeline, task))
    for number, senders in sent.items():
        receivers = received.get(number, [])
        if len(senders) == len(receivers) == 1:
            messages.append(_Message(*senders[0], *receivers[0]))
    return messages


def _align(
    timelines: Sequence[Timeline], messages: Sequence[_Message]
) -> tuple[tuple[ClockOffset, ...], list[float]]:
    """The clock offsets, and the start of each timeline in seconds after the first one."""
    clocks = list(dict.fromkeys(each.origin.clock for each in timelines))
    # Subtract a base: floats cannot hold the time since boot with the precision of task times.
    base = {
        clock: min(each.origin.begin_ns for each in timelines if each.origin.clock == clock)
        for clock in clocks
    }
    begins = {
        each.origin.rank: (each.origin.begin_ns - base[each.origin.clock]) * 1e-9
        for each in timelines
    }
    fastest: dict[tuple[str, str], float] = {}
    for sender, sent, receiver, received in messages:
        way = sender.origin.clock, receiver.origin.clock
        came = begins[receiver.origin.rank] + received.begin
        took = came - (begins[sender.origin.rank] + sent.begin)
        fastest[way] = min(took, fastest.get(way, took))
    _check_order(clocks, fastest)
    longest = max((task.end for each in timelines for task in each.tasks), default=0.0)
    known = shifts(clocks, fastest, longest)
    # Unix time at each clock's base.
    unix = {
        each.origin.clock: each.origin.unix_ns - each.origin.begin_ns + base[each.origin.clock]
        for each in timelines
    }
    offsets, moved = [], {}
    for clock in clocks:
        members = [each.origin for each in timelines if each.origin.clock == clock]
        shift, by = known.get(clock), "messages"
        if shift is None:
            shift, by = Shift((unix[clock] - unix[clocks[0]]) * 1e-9, None), "wall clock"
        moved[clock] = shift.seconds
        offsets.append(
            ClockOffset(
                ranks=tuple(each.rank for each in members),
                hosts=tuple(dict.fromkeys(each.host for each in members)),
                seconds=shift.seconds + (base[clocks[0]] - base[clock]) * 1e-9,
                uncertainty_seconds=shift.uncertainty,
                by="reference" if clock == clocks[0] else by,
            )
        )
    starts = [begins[each.origin.rank] + moved[each.origin.clock] for each in timelines]
    return tuple(offsets), [start - min(starts) for start in starts]


def _check_order(clocks: Sequence[str], fastest: dict[tuple[str, str], float]) -> None:
    for clock in clocks:
        took = fastest.get((clock, clock), 0.0)
        if took < -1e-6:
            raise errors.InvalidArgumentError(
                f"a message arrives {-took:.6f} s before it was sent, on one host: the traces are "
                "not of one run of a program. Give traces that ranks of one run saved."
            )


def _events(
    timelines: Sequence[Timeline], starts: Sequence[float], messages: Sequence[_Message]
) -> list[dict[str, Any]]:
    events = []
    start_of = {}
    for timeline, start in zip(timelines, starts, strict=True):
        rank = timeline.origin.rank
        start_of[rank] = start
        name = f"rank {rank} on {timeline.origin.host}"
        events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": name}})
        events.append(
            {"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}}
        )
        events += names_of(rank)
        events += [event_of(_later(task, start), rank) for task in timeline.tasks]
    for number, (sender, sent, receiver, received) in enumerate(messages):
        for phase, timeline, task in (("s", sender, sent), ("f", receiver, received)):
            rank = timeline.origin.rank
            event = event_of(_later(task, start_of[rank]), rank)
            arrow = {name: event[name] for name in ("ts", "pid", "tid")}
            events.append(
                {"name": "message", "cat": "message", "ph": phase, "bp": "e", "id": number} | arrow
            )
    return events


def _later(task: Task, seconds: float) -> Task:
    return dataclasses.replace(task, begin=task.begin + seconds, end=task.end + seconds)

"""Evaluation of the records of a job's ranks."""

from __future__ import annotations

import collections
import re
from typing import Any

from stress.faults.table import Fault

GRACE_SECONDS = 2.0  # beyond the deadline


class Tally:
    """One cell of the table: a fault, an operation and a place."""

    def __init__(self) -> None:
        self.runs = 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.seconds: list[float] = []
        self.examples: dict[str, str] = {}

    def note(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        self.examples.setdefault(kind, example[:600])

    def row(self) -> dict[str, Any]:
        """Returns the row for the file of results; without runs it has no times."""
        kinds = ("hangs", "wrong", "late", "unnamed", "unusable", "leftovers")
        row: dict[str, Any] = {"runs": self.runs} | {kind: self.counts[kind] for kind in kinds}
        if self.seconds:
            ordered = sorted(self.seconds)
            row["median_seconds"] = ordered[len(ordered) // 2]
            row["longest_seconds"] = ordered[-1]
        return row

    @property
    def is_good(self) -> bool:
        return not self.counts


def judge(
    fault: Fault, lines: list[dict[str, Any]], ranks: int, tallies: dict[str, Tally]
) -> set[int]:
    """Adds the results of one job.

    Args:
      fault: of the job.
      lines: records of all its ranks.
      ranks: in each run, including the victim.
      tallies: by operation.

    Returns:
      The complete runs.
    """
    by_run: dict[int, list[dict[str, Any]]] = collections.defaultdict(list)
    for line in lines:
        if "run" in line:
            by_run[line["run"]].append(line)
    # A dead victim writes no records.
    speakers = ranks - fault.ends_process
    complete = set()
    for run, of_run in sorted(by_run.items()):
        said = {each["rank"] for each in of_run if each.get("usable")}
        for operation in tallies:
            tally = tallies[operation]
            told = [each for each in of_run if each.get("operation") == operation]
            if fault.ends_process:
                told = [each for each in told if each["rank"] != each["victim"]]
            tally.runs += 1
            if len(told) < speakers:
                heard = sorted(each["rank"] for each in told)
                tally.note("hangs", f"run {run}: only ranks {heard} came to an end")
            if len(said) < speakers:
                tally.note("unusable", f"run {run}: later operations right on {sorted(said)} only")
            for each in told:
                _judge_line(fault, each, tally)
            if any(each.get("intact") is False for each in of_run):
                tally.note("wrong", f"run {run}: memory that was given back was written to")
        complete.add(run)
    return complete


def judge_end(
    fault: Fault,
    lines: list[dict[str, Any]],
    ended_at: float,
    error: str,
    wanted: str,
    tallies: dict[str, Tally],
) -> bool:
    """The same for a launcher that ends the whole job when one rank has died.

    Args:
      fault: of the job.
      lines: records of all its ranks, before they were ended.
      ended_at: time at which the job had ended.
      error: the launcher's error.
      wanted: text that it must contain.
      tallies: by operation.

    Returns:
      Whether a rank died at all.
    """
    died = [line["died_at"] for line in lines if "died_at" in line]
    if not died:
        return False
    seconds = round(ended_at - died[0], 3)
    for operation, tally in tallies.items():
        tally.runs += 1
        tally.seconds.append(seconds)
        if seconds > fault.seconds + GRACE_SECONDS:
            tally.note("late", f"{seconds} s: {error}")
        if wanted not in error:
            tally.note("unnamed", error)
        for line in lines:
            if line.get("operation") == operation and line["wrong"]:
                tally.note("wrong", line["wrong"])
    return True


def _judge_line(fault: Fault, line: dict[str, Any], tally: Tally) -> None:
    where = f"run {line['run']}, rank {line['rank']}: "
    victim = line["victim"]
    if line["wrong"]:
        tally.note("wrong", where + line["wrong"])
        return
    wanted = fault.others if line["rank"] != victim else fault.victim
    if not fault.others and line["text"]:
        tally.note("unnamed", where + line["text"])
    if wanted and not re.search(wanted.format(victim=victim), line["text"], re.DOTALL):
        tally.note("unnamed", where + (line["text"] or "no error"))
    if line["rank"] != victim:
        tally.seconds.append(line["seconds"])
        if line["seconds"] > fault.seconds + GRACE_SECONDS:
            tally.note("late", f"{where}{line['seconds']} s, {line['text']}")

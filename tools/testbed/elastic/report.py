"""What members' lines say of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

# A fault that has been told of for so long without being noticed has not hurt anybody.
_NOTICED_SECONDS = 30.0

Line = dict[str, Any]


def summary(
    logs: Sequence[tuple[int, Sequence[Line]]],
    befallen: Sequence[Line],
    begin: float,
    end: float,
    hangs: int,
) -> dict[str, Any]:
    """A row of results.

    Args:
      logs: of each process, its host and its lines.
      befallen: the faults: when, of which kind, on which host.
      begin: of the time that counts, in Unix time.
      end: of it.
      hangs: how many processes had to be killed in the end.
    """
    steps: dict[int, set[str]] = {}
    ends: dict[int, float] = {}
    for line in (line for _, log in logs for line in log if "hash" in line):
        steps.setdefault(line["step"], set()).add(line["hash"])
        ends[line["step"]] = min(ends.get(line["step"], line["t"]), line["t"])
    counted = [step for step, t in ends.items() if begin <= t < end]
    losses = [line["loss"] for _, log in logs for line in log if "loss" in line]
    row: dict[str, Any] = {
        "seconds": round(end - begin, 1),
        "outer_steps": len(counted),
        "steps_with_different_bits": sum(len(hashes) > 1 for hashes in steps.values()),
        "hangs": hangs,
        "processes": len(logs),
        "loss": statistics.median(losses) if losses else None,
    }
    by_kind: dict[str, list[tuple[float | None, float | None]]] = {}
    for number, fault in enumerate(befallen):
        following = befallen[number + 1]["t"] if number + 1 < len(befallen) else end
        until = min(following, fault["t"] + _NOTICED_SECONDS)
        others = [log for host, log in logs if host != fault["host"]]
        by_kind.setdefault(fault["kind"], []).append(_seconds(others, fault["t"], until))
    row["by_kind"] = {kind: _kind(found) for kind, found in by_kind.items()}
    return row


def _seconds(
    logs: Sequence[Sequence[Line]], begun: float, until: float
) -> tuple[float | None, float | None]:
    """From a fault until all that go on have heard of it, and until a step of theirs is done."""
    lines = [line for log in logs for line in log if begun <= line["t"] < until]
    shrunk = [line for line in lines if "shrunk" in line]
    if not shrunk:
        return None, None
    told = max(
        min((x["t"] for x in log if begun <= x["t"] < until and "failed" in x), default=begun)
        for log in logs
    )
    after = [line["t"] for line in lines if "hash" in line and line["t"] > shrunk[-1]["t"]]
    return told - begun, min(after) - begun if after else None


def _kind(found: Sequence[tuple[float | None, float | None]]) -> dict[str, Any]:
    told = [a for a, _ in found if a is not None]
    gone_on = [b for _, b in found if b is not None]

    def rounded(values: Sequence[float], of: Any) -> float | None:
        return round(of(values), 2) if values else None

    return {
        "count": len(found),
        "noticed": len(told),
        "told_seconds": rounded(told, statistics.median),
        "told_seconds_most": rounded(told, max),
        "next_step_seconds": rounded(gone_on, statistics.median),
        "next_step_seconds_most": rounded(gone_on, max),
    }

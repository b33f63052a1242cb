"""Summarises the members' lines of a run: a row of results, a table and a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from testbed import scenario
from testbed.elastic import faults

# A failure that members notice later after a fault is not counted as the fault's effect.
_NOTICED_SECONDS = 30.0

# Steps are counted in intervals of this length.
_STRETCH_SECONDS = 10

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
      logs: host and lines of each process.
      befallen: the faults that occurred: time, kind and host.
      begin: start of the measured time, in Unix time.
      end: end of the measured time, in Unix time.
      hangs: number of processes that had to be killed in the end.
    """
    ends: dict[int, float] = {}
    for line in (line for _, log in logs for line in log if "hash" in line):
        ends[line["step"]] = min(ends.get(line["step"], line["t"]), line["t"])
    counted = [step for step, t in ends.items() if begin <= t < end]
    losses = [line["loss"] for _, log in logs for line in log if "loss" in line]
    row: dict[str, Any] = {
        "seconds": round(end - begin, 1),
        "outer_steps": len(counted),
        "steps_with_different_bits": steps_with_different_bits([log for _, log in logs]),
        "hangs": hangs,
        "processes": len(logs),
        "loss": statistics.median(losses) if losses else None,
        "steps_by_time": _by_time([ends[step] - begin for step in counted], end - begin),
        "befallen": [
            [round(fault["t"] - begin, 1), fault["kind"], fault["host"]] for fault in befallen
        ],
    }
    by_kind: dict[str, list[tuple[float | None, float | None]]] = {}
    for number, fault in enumerate(befallen):
        following = befallen[number + 1]["t"] if number + 1 < len(befallen) else end
        until = min(following, fault["t"] + _NOTICED_SECONDS)
        others = [log for host, log in logs if host != fault["host"]]
        by_kind.setdefault(fault["kind"], []).append(_seconds(others, fault["t"], until))
    row["by_kind"] = {kind: _kind(found) for kind, found in by_kind.items()}
    return row


def steps_with_different_bits(logs: Sequence[Sequence[Line]]) -> int:
    """The number of steps after which members had different bits.

    All members of a step, and all members that continue after it, must have the same bits. One
    exception: a process that was stopped during a step may finish the step after the others have
    repeated it without this process. The process is then cut off, and gets new parameters when it
    joins again.
    """
    hashes: dict[tuple[int, str], set[str]] = {}
    for log in logs:
        done = [line for line in log if "hash" in line]
        cut_off = any("cut_off" in line for line in log)
        for line in done:
            hashes.setdefault((line["step"], str(line["members"])), set()).add(line["hash"])
        for line in done[: len(done) - cut_off]:
            hashes.setdefault((line["step"], "all that go on"), set()).add(line["hash"])
    return len({step for (step, _), found in hashes.items() if len(found) > 1})


def _by_time(seconds: Sequence[float], all_seconds: float) -> list[int]:
    """The number of steps in each interval of time."""
    counts = [0] * math.ceil(all_seconds / _STRETCH_SECONDS)
    for each in seconds:
        counts[int(each / _STRETCH_SECONDS)] += 1
    return counts


def table(lines: Sequence[Line]) -> str:
    """A Markdown table with a row for each kind of fault, then totals of the whole run."""
    runs = {line["faults"]: line for line in lines if "faults" in line}
    run, quiet = runs["faults"], runs.get("none")
    rows = [
        (
            _called(kind, run),
            str(found["count"]),
            str(found["noticed"]),
            _medians(found, "told_seconds"),
            _medians(found, "next_step_seconds"),
        )
        for kind, found in run["by_kind"].items()
    ]
    heads = ("fault", "times", "members were lost", "all are told", "next step")
    steps, loss = [_steps(run) + " with faults"], [f"{run['loss']:.7g} with faults"]
    if quiet:
        rate = _rate(run) / _rate(quiet)
        steps.append(f"{_steps(quiet)} without: {rate:.1%} a second")
        loss.append(f"{quiet['loss']:.7g} without")
    different = sum(each["steps_with_different_bits"] for each in runs.values())
    return "\n".join(
        [
            scenario.markdown(heads, rows),
            "",
            f"- Outer steps: {', '.join(steps)}.",
            f"- Steps after which members had different bits: {different}. Processes that hung: "
            f"{sum(each['hangs'] for each in runs.values())}.",
            f"- The loss in the end: {', '.join(loss)}.",
        ]
    )


def _steps(run: Line) -> str:
    return f"{run['outer_steps']} in {run['seconds']:.0f} s"


def _rate(run: Line) -> float:
    return float(run["outer_steps"] / run["seconds"])


def _called(kind: str, run: Line) -> str:
    fault = faults.KINDS[kind]
    seconds = fault.seconds and run.get("lasting_seconds", fault.seconds)
    return f"{fault.about} for {seconds:g} s" if seconds else fault.about


def _medians(found: Line, name: str) -> str:
    if found[name] is None:
        return ""
    return f"{found[name]:.2f} s ({found[f'{name}_most']:.2f} s)"


def plot(lines: Sequence[Line], path: str) -> None:
    """Plots outer steps per second over time, and the faults."""
    from matplotlib.figure import Figure

    runs = {line["faults"]: line for line in lines if "faults" in line}
    run, quiet = runs["faults"], runs.get("none")
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    for number, kind in enumerate(run["by_kind"]):
        at = [seconds / 60 for seconds, each, _ in run["befallen"] if each == kind]
        colour, label = f"C{number + 1}", _called(kind, run)
        axes.vlines(at, 0, 0.3, colors=colour, linewidth=1.5, label=label)
    counts = run["steps_by_time"]
    minutes = [(number + 0.5) * _STRETCH_SECONDS / 60 for number in range(len(counts))]
    axes.plot(minutes, [count / _STRETCH_SECONDS for count in counts], label="with faults")
    if quiet:
        without = {"color": "black", "linestyle": "--", "linewidth": 1}
        axes.axhline(_rate(quiet), label="without, on average", **without)
    axes.set_xlabel("minutes")
    axes.set_ylabel("outer steps a second")
    axes.set_ylim(0)
    axes.legend(fontsize=7, ncols=3, loc="center")
    figure.savefig(path, metadata={"Date": None})


def _seconds(
    logs: Sequence[Sequence[Line]], begun: float, until: float
) -> tuple[float | None, float | None]:
    """Seconds from a fault until all survivors have noticed it, and until their next step is done.

    A survivor is a process that noticed a failure and shrunk the group. Not a survivor is a process
    that an earlier fault stopped, and that only now learns that it is cut off.
    """
    during = [[line for line in log if begun <= line["t"] < until] for log in logs]
    go_on = [
        log for log in during if all(any(key in x for x in log) for key in ("failed", "shrunk"))
    ]
    if not go_on:
        return None, None
    told = max(next(line["t"] for line in log if "failed" in line) for log in go_on)
    shrunk = max(next(line["t"] for line in log if "shrunk" in line) for log in go_on)
    after = [line["t"] for log in go_on for line in log if "hash" in line and line["t"] > shrunk]
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

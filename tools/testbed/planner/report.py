"""Reports on a comparison: a table, and a check against the acceptance thresholds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from testbed import scenario
from testbed.planner.points import MEMORY, place_of

Line = dict[str, Any]

# Thresholds of the chosen plan's time / the fastest fixed plan's time.
OF_BEST, OF_BEST_IN_MEMORY, OF_BEST_OF_SMALL = 1.1, 1.05, 1.2
SMALL_BYTES = 4 << 10
MEDIAN_ERROR, WORST_ERROR = 0.15, 0.4  # of predicted costs
# bfloat16 values should go lossless over links of SLOW from SLOW_BYTES on, and raw in memory.
SLOW, SLOW_BYTES = "1gbit", 1 << 20


def points_of(lines: Iterable[Line]) -> list[Line]:
    """The lines of points, without facts and profiles."""
    return [_by_prices(line) for line in lines if "plans" in line]


def _by_prices(line: Line) -> Line:
    """A point with the choice by predicted costs.

    Profiles once had measured times of operations. In lines from then, `auto` is the choice by
    times and predicted costs, and `by_prices` the choice by predicted costs alone, which ran as
    another fixed plan.
    """
    if "by_prices" not in line:
        return line
    (with_times,) = (plan for plan in line["plans"] if _is_same(plan, line["auto"]))
    return line | {
        "auto": line["by_prices"],
        "ratio": line["ratio_by_prices"],
        "ratio_with_times": with_times["seconds"] / line["best"]["seconds"],
    }


def table(lines: Iterable[Line]) -> str:
    """A Markdown table with a row for each operation at each place, then the thresholds."""
    points = points_of(lines)
    sizes = sorted({line["size"] for line in points})
    heads = ["links", "operation", *map(_size, sizes), "prices off by, median", "at most"]
    rows = []
    for place, op in dict.fromkeys((place_of(line), line["op"]) for line in points):
        here = [line for line in points if place_of(line) == place and line["op"] == op]
        by_size = {line["size"]: _cell(line) for line in here}
        median, worst = error_of(here)
        row = [_place(here[0]), op, *(by_size.get(size, "") for size in sizes)]
        rows.append([*row, f"{median:.0%}", f"{worst:.0%}"])
    return "\n".join([scenario.markdown(heads, rows, texts=2), "", *bars(points)])


def bars(points: Sequence[Line]) -> list[str]:
    """A line of text for each threshold: the condition, and whether it is met."""
    if not points:
        return ["- Nothing was measured."]
    found = []
    memory = [line for line in points if line["link"] == MEMORY]
    for where, here, of_best in (
        ("between hosts", [line for line in points if line["link"] != MEMORY], OF_BEST),
        ("in memory", [e for e in memory if e["size"] >= SMALL_BYTES], OF_BEST_IN_MEMORY),
        (
            f"in memory, below {_size(SMALL_BYTES)}",
            [line for line in memory if line["size"] < SMALL_BYTES],
            OF_BEST_OF_SMALL,
        ),
    ):
        if here:
            found += _of_choices(here, where, of_best)
    halves = [line for line in points if line["input"] == "bfloat16"]
    slow = [line for line in halves if line["link"] == SLOW and line["size"] >= SLOW_BYTES]
    fast = [line for line in halves if line["link"] == MEMORY]
    for those, codec, where in (
        (slow, "lossless", f"between hosts at {SLOW}, from {_size(SLOW_BYTES)}"),
        (fast, "raw", "in memory"),
    ):
        if those:
            right = sum(line["auto"]["codec"] == codec for line in those)
            text = f"bfloat16 weights go {codec} {where}: at {right} of {len(those)} points"
            found.append((right == len(those), text))
    return [f"- {'Met' if met else 'Not met'}: {text}." for met, text in found]


def _of_choices(points: Sequence[Line], where: str, of_best: float) -> list[tuple[bool, str]]:
    beyond = [line for line in points if line["ratio"] > of_best]
    same = sum(_is_same(line["auto"], line["best"]) for line in beyond)
    worst = max(points, key=lambda line: line["ratio"])
    median, largest = error_of(points)
    text = (
        f"{where}, the chosen plan takes at most {of_best:g} times the fastest fixed plan: at "
        f"{len(points) - len(beyond)} of {len(points)} points"
    )
    if same:
        text += f" (at {same} of the others both are the same plan, measured twice)"
    text += f". At most {worst['ratio']:.2f} x: {_point(worst)}"
    if with_times := [line["ratio_with_times"] for line in points if "ratio_with_times" in line]:
        within = sum(ratio <= of_best for ratio in with_times)
        text += (
            f". By times of operations and prices at {within} of {len(with_times)}, and at most "
            f"{max(with_times):.2f} x"
        )
    return [
        (not beyond, text),
        (
            median <= MEDIAN_ERROR and largest <= WORST_ERROR,
            f"{where}, prices are off by {MEDIAN_ERROR:.0%} as a median and {WORST_ERROR:.0%} at "
            f"most: {median:.0%} and {largest:.0%}",
        ),
    ]


def _is_same(one: Line, other: Line) -> bool:
    return (one["algorithm"], one["codec"]) == (other["algorithm"], other["codec"])


def error_of(points: Iterable[Line]) -> tuple[float, float]:
    """The median and largest relative error of the predicted costs of all plans."""
    errors = [abs(plan["error"]) for line in points for plan in line["plans"]]
    return statistics.median(errors), max(errors)


def _cell(line: Line) -> str:
    auto, best = line["auto"], line["best"]
    text = f"{_plan(auto)}: {_time(auto['seconds'])}, {line['ratio']:.2f} x"
    return text if _is_same(auto, best) else f"{text} of {_plan(best)}"


def _plan(plan: Line) -> str:
    return f"{plan['algorithm']}, {plan['codec']}"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _place(line: Line) -> str:
    hosts, link = line["hosts"], line["link"]
    return f"{hosts} in memory" if link == MEMORY else f"{hosts} x {link}"


def _point(line: Line) -> str:
    return f"{line['op']} of {_size(line['size'])}, {_place(line)}"

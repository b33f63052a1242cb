"""What is done with the lines that a comparison of ways has written: a table, and a plot."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Line = dict[str, Any]

_COLUMNS = ("way", "a step", "of the best torch DDP", "received a step", "loss")


def read(lines: Iterable[str]) -> list[Line]:
    """The ways of a results file, without what it says of machines; the later of two of one way."""
    found = [json.loads(line) for line in lines]
    latest = {(line["task"], line["way"]): line for line in found if "way" in line}
    return list(latest.values())


def table(lines: Sequence[Line]) -> str:
    """A Markdown table for each task, the fastest way first."""
    return "\n\n".join(
        _table(task, [line for line in lines if line["task"] == task])
        for task in dict.fromkeys(line["task"] for line in lines)
    )


def _table(task: str, lines: Sequence[Line]) -> str:
    done = sorted((line for line in lines if "seconds" in line), key=lambda line: line["seconds"])
    peers = [line["seconds"] for line in done if line["worker"] == "torch"]
    first = done[0]
    rows = [
        f"**{task}**, {first['hosts']} x {first['link']}",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---|---:|---:|---:|---:|",
    ]
    for line in done:
        cells = [
            line["way"].replace("|", "\\|"),
            f"{line['seconds']:.3f} s",
            f"{min(peers) / line['seconds']:.2f} x" if peers else "",
            f"{line['received_bytes_per_step'] / 1e6:.1f} MB",
            f"{statistics.fmean(line['losses']):.4f}" if line.get("losses") else "",
        ]
        if not line["identical"]:
            cells[0] += " (parameters differ)"
        rows.append(f"| {' | '.join(cells)} |")
    failed = [f"Failed: {line['way']}." for line in lines if "error" in line]
    return "\n".join([*rows, *failed])


def plot(lines: Sequence[Line], path: str) -> None:
    """Bars of seconds a step, by worker."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(line["task"] for line in lines))
    figure = Figure(figsize=(9, 1 + 0.24 * len(lines)), layout="constrained")
    heights = [sum(line["task"] == task for line in lines) for task in tasks]
    axes = figure.subplots(len(tasks), 1, squeeze=False, height_ratios=heights)[:, 0]
    colours = {"jaxccomp": "tab:blue", "torch": "tab:orange", "mpi": "tab:gray"}
    for each, task in zip(axes, tasks, strict=True):
        done = [line for line in lines if line["task"] == task and "seconds" in line]
        done.sort(key=lambda line: -line["seconds"])
        each.barh(
            [line["way"] for line in done],
            [line["seconds"] for line in done],
            color=[colours[line["worker"]] for line in done],
        )
        each.set_xlabel(f"{task}: seconds a step")
        each.tick_params(labelsize=7)
    figure.savefig(path, metadata={"Date": None})

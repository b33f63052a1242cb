"""What is done with the lines that a comparison of ways has written: a table, and a plot."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Line = dict[str, Any]

_COLUMNS = (
    "way",
    "a step",
    "of the best torch DDP",
    "more than computing",
    "coding",
    "processor",
    "received",
    "loss",
)


def read(lines: Iterable[str]) -> list[Line]:
    """The ways of a results file, without what it says of machines.

    Of what several lines say of one way, its times and its losses for instance, the last counts.
    """
    latest: dict[tuple[Any, ...], Line] = {}
    for line in map(json.loads, lines):
        if "way" in line:
            key = *_place(line), line["way"]
            latest[key] = latest.get(key, {}) | line
    return list(latest.values())


def _place(line: Line) -> tuple[Any, ...]:
    return line["task"], line["hosts"], line["link"]


def _places(lines: Sequence[Line]) -> list[list[Line]]:
    return [
        [line for line in lines if _place(line) == place]
        for place in dict.fromkeys(map(_place, lines))
    ]


def table(lines: Sequence[Line]) -> str:
    """A Markdown table for each task on each testbed, the fastest way first."""
    return "\n\n".join(map(_table, _places(lines)))


def _title(line: Line) -> str:
    return "{}, {} x {}".format(*_place(line))


def _table(lines: Sequence[Line]) -> str:
    done = sorted((line for line in lines if "seconds" in line), key=lambda line: line["seconds"])
    # Of these no times were measured.
    losses = [line for line in lines if line.get("losses") and "seconds" not in line]
    raw = next((line for line in lines if line.get("losses") and line["codec"] == "raw"), None)
    peers = [line["seconds"] for line in done if line["worker"] == "torch"]
    alone = [line["seconds"] for line in done if line["worker"] == "alone"]
    rows = [
        f"**{_title(done[0])}**",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---|" + "---:|" * (len(_COLUMNS) - 1),
    ]
    for line in done:
        cells = [
            _way(line),
            f"{line['seconds']:.3f} s",
            f"{min(peers) / line['seconds']:.2f} x" if peers else "",
            _milliseconds(line["seconds"] - alone[0]) if alone else "",
            _milliseconds(line["coding_seconds"]),
            _milliseconds(line["processor_seconds"]),
            f"{line['received_bytes_per_step'] / 1e6:.1f} MB",
            _loss(line, raw),
        ]
        if not line["identical"]:
            cells[0] += " (parameters differ)"
        rows.append(f"| {' | '.join(cells)} |")
    for line in losses:
        cells = [_way(line), *[""] * (len(_COLUMNS) - 2), _loss(line, raw)]
        rows.append(f"| {' | '.join(cells)} |")
    failed = [f"Failed: {line['way']}." for line in lines if "error" in line]
    return "\n".join([*rows, *failed])


def _way(line: Line) -> str:
    return line["way"].replace("|", "\\|")


def _loss(line: Line, raw: Line | None) -> str:
    """The mean of the seeds, and by how much it differs from that without compression."""
    if not line.get("losses"):
        return ""
    loss = statistics.fmean(line["losses"])
    if raw is None or line["codec"] == "raw":
        return f"{loss:.4f}"
    return f"{loss:.4f} ({100 * (loss / statistics.fmean(raw['losses']) - 1):+z.1f} %)"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds else ""


def plot(lines: Sequence[Line], path: str) -> None:
    """Bars of seconds a step, by worker."""
    from matplotlib.figure import Figure

    places = _places([line for line in lines if "seconds" in line])
    figure = Figure(figsize=(9, 1 + 0.24 * len(lines)), layout="constrained")
    axes = figure.subplots(len(places), 1, squeeze=False, height_ratios=list(map(len, places)))
    colours = {"jaxccomp": "tab:blue", "torch": "tab:orange", "mpi": "tab:gray", "alone": "black"}
    for each, place in zip(axes[:, 0], places, strict=True):
        done = sorted(place, key=lambda line: -line["seconds"])
        each.barh(
            [line["way"] for line in done],
            [line["seconds"] for line in done],
            color=[colours[line["worker"]] for line in done],
        )
        each.set_xlabel(f"{_title(done[0])}: seconds a step")
        each.tick_params(labelsize=7)
    figure.savefig(path, metadata={"Date": None})

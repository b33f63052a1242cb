"""Makes a table of the results of a comparison of ways."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from testbed import scenario
from testbed.scenario import Line

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


def _latest(lines: Iterable[Line]) -> list[Line]:
    """One line per way, without facts of machines.

    Merges the lines of a way, for instance one with times and one with losses; the last one wins.
    """
    latest: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        if "way" in line:
            key = *_place(line), line["way"]
            latest[key] = latest.get(key, {}) | line
    return list(latest.values())


def _place(line: Line) -> tuple[Any, ...]:
    return line["task"], line["hosts"], line["link"]


def table(lines: Iterable[Line]) -> str:
    """A Markdown table for each task on each testbed, the fastest way first."""
    found = _latest(lines)
    places = dict.fromkeys(map(_place, found))
    return "\n\n".join(_table([each for each in found if _place(each) == p]) for p in places)


def _table(lines: Sequence[Line]) -> str:
    done = sorted((line for line in lines if "seconds" in line), key=lambda line: line["seconds"])
    # Ways that have losses but no times.
    losses = [line for line in lines if line.get("losses") and "seconds" not in line]
    raw = next((line for line in lines if line.get("losses") and line["codec"] == "raw"), None)
    columns = list(_COLUMNS)
    peers = [line["seconds"] for line in done if line["worker"] == "torch"]
    gloo = [line["seconds"] for line in done if line["codec"] == "gloo"]
    if gloo:  # a table of XLA's own collectives
        peers, columns[2:4] = gloo, ["of JAX with gloo", "outside of sums"]
    alone = [line["seconds"] for line in done if line["worker"] == "alone"]

    def beyond(line: Line) -> float:
        if gloo:
            return line.get("outside_seconds", 0)
        return line["seconds"] - alone[0] if alone else 0

    rows = []
    for line in done:
        cells = [
            line["way"],
            f"{line['seconds']:.3f} s",
            f"{min(peers) / line['seconds']:.2f} x" if peers else "",
            _milliseconds(beyond(line)),
            _milliseconds(line["coding_seconds"]),
            _milliseconds(line["processor_seconds"]),
            f"{line['received_bytes_per_step'] / 1e6:.1f} MB",
            _loss(line, raw),
        ]
        if not line["identical"]:
            cells[0] += " (parameters differ)"
        rows.append(cells)
    rows += [[line["way"], *[""] * (len(_COLUMNS) - 2), _loss(line, raw)] for line in losses]
    failed = [f"Failed: {line['way']}." for line in lines if "error" in line]
    title = "**{}, {} x {}**".format(*_place(done[0]))
    return "\n".join([title, "", scenario.markdown(columns, rows), *failed])


def _loss(line: Line, raw: Line | None) -> str:
    """The mean over seeds, and its difference to the mean without compression in percent."""
    if not line.get("losses"):
        return ""
    loss = statistics.fmean(line["losses"])
    if raw is None or line["codec"] == "raw":
        return f"{loss:.4f}"
    return f"{loss:.4f} ({100 * (loss / statistics.fmean(raw['losses']) - 1):+z.1f} %)"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds else ""

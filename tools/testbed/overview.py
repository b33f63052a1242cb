"""Draws the README's picture, a broadcast and a training step on slow links.

    python -m testbed.overview docs/results docs/results/overview.svg

It reads the measurements of `testbed.compare` and `testbed.training` in the folder.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from jaxccomp._native import json_files

# Contender, setting and input of a broadcast, and its label.
_BROADCASTS = {
    ("mpich", "default", "bfloat16"): "MPICH",
    ("openmpi", "default", "bfloat16"): "Open MPI",
    ("openmpi", "pipeline, 32 KiB", "bfloat16"): "Open MPI, best setting",
    ("jaxccomp raw, mpich", "chain", "bfloat16"): "jaxccomp",
    ("jaxccomp lossless, mpich", "chain", "bfloat16"): "jaxccomp, lossless",
    ("jaxccomp lossless, mpich", "chain", "update"): "jaxccomp, lossless, ref=",
}
# Ways to reduce gradients, and their labels.
_STEPS = {
    "torch, raw": "torch DDP",
    "torch, raw, buckets of 4096 KiB": "torch DDP, best buckets",
    "torch, bf16, buckets of 4096 KiB": "torch DDP, bf16 hook",
    "jaxccomp, raw, buckets of 4096 KiB": "jaxccomp",
    "jaxccomp, bf16|lossless, whole": "jaxccomp, bf16|lossless",
    "jaxccomp, int8, buckets of 4096 KiB": "jaxccomp, int8",
    "computing alone": "computing alone",
}
_TITLES = (
    "Broadcast of 64 MiB of bfloat16 weights",
    "Training step, 5.9 M parameters",
)
_WHERE = "4 hosts, 1 Gbit/s"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.overview", description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="of the results")
    parser.add_argument("picture", help="the SVG to write")
    given = parser.parse_args()
    _plot(rows(given.folder), given.picture)
    return 0


def rows(folder: pathlib.Path) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the seconds by label: of the broadcasts, and of the training steps.

    Raises:
      KeyError: if a row was not measured.
    """
    broadcasts = {
        (line["contender"], line["setting"], line["input"]): line["seconds"]
        for line in json_files.lines(folder / "testbed.jsonl")
        if line.get("scenario") == "collectives"
        and (line["op"], line["hosts"], line["link"]) == ("bcast", 4, "1gbit")
    }
    steps = {
        line["way"]: line["seconds"]
        for line in json_files.lines(folder / "training_overlap.jsonl")
        if (line.get("task"), line.get("hosts")) == ("mlp", 4) and "seconds" in line
    }
    return (
        {label: broadcasts[key] for key, label in _BROADCASTS.items()},
        {label: steps[key] for key, label in _STEPS.items()},
    )


def _plot(found: Sequence[dict[str, float]], path: str) -> None:
    """Draws a bar for each row; text stays text, so that it can be searched."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "overview"}):
        figure = Figure(figsize=(10, 2.8), layout="constrained")
        for axes, title, seconds in zip(figure.subplots(1, 2), _TITLES, found, strict=True):
            labels = list(seconds)
            colours = ["C0" if label.startswith("jaxccomp") else "0.7" for label in labels]
            bars = axes.barh(labels, list(seconds.values()), color=colours)
            axes.bar_label(bars, fmt="%.3f s", padding=3)
            axes.invert_yaxis()
            axes.set_title(f"{title}\n{_WHERE}: seconds, less is better", fontsize=10)
            axes.set_xlim(0, 1.25 * max(seconds.values()))
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())

"""Draws the pictures of measurements on slow links, for the README and docs/xla.md.

    python -m testbed.overview docs/results

It reads the measurements of `testbed.compare` and `testbed.training` in the folder.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

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
# Libraries of XLA's own collectives, and their labels.
_UNCHANGED = {
    "xla, gloo": "JAX over gloo",
    "xla, mpi": "JAX's MPI mode",
    "xla, raw": "jaxccomp",
    "xla, lossless": "jaxccomp, lossless",
    "xla, int8": "jaxccomp, int8",
}
_WHERE = "4 hosts, 1 Gbit/s"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.overview", description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="of the results, and of the pictures")
    given = parser.parse_args()
    for name, panels in pictures(given.folder).items():
        _plot(panels, given.folder / name)
    return 0


def pictures(folder: pathlib.Path) -> dict[str, dict[str, dict[str, float]]]:
    """Returns, by file name, the panels of each picture: by title, the seconds by label.

    Raises:
      KeyError: if a row was not measured.
    """
    broadcasts = {
        (line["contender"], line["setting"], line["input"]): line["seconds"]
        for line in json_files.lines(folder / "testbed.jsonl")
        if line.get("scenario") == "collectives"
        and (line["op"], line["hosts"], line["link"]) == ("bcast", 4, "1gbit")
    }
    return {
        "overview.svg": {
            "Broadcast of 64 MiB of bfloat16 weights": {
                label: broadcasts[key] for key, label in _BROADCASTS.items()
            },
            "Training step, 5.9 M parameters": _steps(folder / "training_overlap.jsonl", _STEPS),
        },
        "xla.svg": {
            f"Training step by shardings, {title}": _steps(folder / "xla.jsonl", _UNCHANGED, task)
            for task, title in (("mlp", "5.9 M parameters"), ("transformer", "transformer"))
        },
    }


def _steps(file: pathlib.Path, labels: dict[str, str], task: str = "mlp") -> dict[str, float]:
    """The seconds of a step of the ways that have labels."""
    seconds = {
        line["way"]: line["seconds"]
        for line in json_files.lines(file)
        if (line.get("task"), line.get("hosts")) == (task, 4) and "seconds" in line
    }
    return {label: seconds[way] for way, label in labels.items()}


def _plot(panels: dict[str, dict[str, float]], path: pathlib.Path) -> None:
    """Draws a bar for each row; text stays text, so that it can be searched."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "overview"}):
        figure = Figure(figsize=(10, 2.8), layout="constrained")
        for axes, (title, seconds) in zip(figure.subplots(1, 2), panels.items(), strict=True):
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

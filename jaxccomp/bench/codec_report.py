"""What is done with measurements of codecs: lines of JSON, tables, a plot."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from typing import Any, TextIO

from jaxccomp._native import json_files, tables
from jaxccomp.bench.codecs import WORKING_SETS, Row, facts


def write(rows: list[Row], file: TextIO) -> None:
    """One JSON object per line; the first says what was measured with."""
    print(json.dumps({"facts": facts()}), file=file)
    for row in rows:
        fields = {
            key: float(f"{value:.5g}") if isinstance(value, float) else value
            for key, value in dataclasses.asdict(row).items()
        }
        print(json.dumps(fields), file=file)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Row]]:
    """What :func:`write` wrote."""
    first, *lines = json_files.lines(path)
    return first["facts"], [Row(**line) for line in lines]


def show(rows: list[Row]) -> None:
    """Tables on the terminal: one per tensor and working set."""
    heads = ("codec", "ratio", "encode", "decode", "merge", "memcpy", "rel. L2", "max error")
    for kind in dict.fromkeys((row.tensor, row.dtype, row.working_set) for row in rows):
        cells = [
            (
                row.codec,
                f"{row.ratio:.3f}",
                _short(row.encode_GBps),
                _short(row.decode_GBps),
                _short(row.merge_GBps),
                _short(row.memcpy_GBps),
                _short(row.rel_l2),
                _short(row.max_abs_error),
            )
            for row in rows
            if (row.tensor, row.dtype, row.working_set) == kind
        ]
        print(f"{', '.join(kind)}, GB/s of values on one core")
        print("\n".join([*tables.lines([heads, *cells], "<>>>>>>>"), ""]))


def markdown(rows: list[Row]) -> str:
    """Tables as Markdown: one per tensor, cached and streaming side by side."""
    heads = ("codec", "ratio", "encode", "decode", "merge", "streaming encode", "decode", "rel. L2")
    lines = []
    for kind in dict.fromkeys((row.tensor, row.dtype) for row in rows):
        chosen = [row for row in rows if (row.tensor, row.dtype) == kind]
        limits = ", ".join(
            f"{name} {_copy_rate(chosen, name):.3g}"
            for name in WORKING_SETS
            if any(row.working_set == name for row in chosen)
        )
        table = []
        for codec in dict.fromkeys(row.codec for row in chosen):
            sets = {row.working_set: row for row in chosen if row.codec == codec}
            cached, streaming = (sets.get(name) for name in WORKING_SETS)
            some = next(iter(sets.values()))
            cells = [
                f"`{codec}`",
                f"{some.ratio:.3f}",
                *_rates(cached, "encode", "decode", "merge"),
                *_rates(streaming, "encode", "decode"),
                _short(some.rel_l2),
            ]
            table.append(cells)
        lines += [f"**{kind[0]}, {kind[1]}** (memcpy: {limits} GB/s)", ""]
        lines += [tables.markdown(heads, table), ""]
    return "\n".join(lines).rstrip() + "\n"


def plot(rows: list[Row], path: str) -> None:
    """Ratio against the speed of encoding and decoding, cached where that was measured."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys((row.tensor, row.dtype) for row in rows))
    figure = Figure(figsize=(7, 4.5 * len(kinds)), layout="constrained")
    for axes, kind in zip(figure.subplots(len(kinds), 1, squeeze=False)[:, 0], kinds, strict=True):
        chosen = [row for row in rows if (row.tensor, row.dtype) == kind]
        cached = any(row.working_set == "cached" for row in chosen)
        working_set = "cached" if cached else "streaming"
        for row in chosen:
            if row.working_set != working_set:
                continue
            speeds = (row.encode_GBps, row.decode_GBps)
            (line,) = axes.plot([row.ratio] * 2, speeds, "-", linewidth=1)
            axes.plot(row.ratio, speeds[0], "o", row.ratio, speeds[1], "^", color=line.get_color())
            axes.annotate(row.codec, (row.ratio, max(speeds)), fontsize=7, rotation=30)
        axes.axhline(_copy_rate(chosen, working_set), linestyle=":", color="gray")
        axes.set(
            title=f"{kind[0]}, {kind[1]}, {working_set} (o: encode, ^: decode, dots: memcpy)",
            xlabel="ratio",
            ylabel="GB/s of values, one core",
            xscale="log",
            yscale="log",
        )
    figure.savefig(path)


def _copy_rate(rows: list[Row], working_set: str) -> float:
    """Of memcpy, as measured beside our own codecs: peers have working sets of their own."""
    return statistics.median(
        row.memcpy_GBps
        for row in rows
        if row.working_set == working_set and not row.codec.startswith("peer")
    )


def _rates(row: Row | None, *names: str) -> list[str]:
    return ["" if row is None else _short(getattr(row, f"{name}_GBps")) for name in names]


def _short(value: float) -> str:
    return "" if value == 0 else f"{value:.3g}"

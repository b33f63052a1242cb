"""Measures rates of memory and codecs on all ranks at once, as ranks share caches and memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxccomp import codecs
from jaxccomp._native import engine
from jaxccomp.bench.files import Tensor
from jaxccomp.bench.progress import Progress
from jaxccomp.bench.team import Team

_CHUNK_BYTES = 1 << 19
_MEMORY_BYTES = 16 << 20
_LEAST_SECONDS, _MOST_SECONDS = 0.02, 0.25  # per codec


def memory(team: Team, progress: Progress) -> dict[str, float]:
    """The copy and reduction rates of one core."""

    def measure() -> np.ndarray:
        values = np.ones(_MEMORY_BYTES // 4, np.float32)
        team.gather([0.0])  # a barrier
        found = _measure("raw", values, _MOST_SECONDS)
        return np.median(team.gather([found["copy_rate"], found["merge_rate"]]), axis=0)

    copy, merge = progress.step("memory", 2, measure)
    return {"copy_bytes_per_second": copy, "merge_bytes_per_second": merge}


def coding(
    team: Team,
    specs: Sequence[str],
    tensors: Sequence[Tensor],
    until: float,
    progress: Progress,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Measures compression ratios and rates of codecs.

    Args:
      team: the ranks.
      specs: the codecs.
      tensors: the tensors to encode.
      until: the deadline, by ``time.monotonic``; the first rank to reach it stops all.
      progress: stores the results.

    Returns:
      Rows by spec, and the names of the cases skipped for lack of time.
    """
    cases = [
        (spec, tensor)
        for spec in specs
        for tensor in tensors
        if tensor.values.dtype.name in engine.load().describe_codec(spec)["dtypes"]
    ]
    left = until - time.monotonic()
    each = min(max(left / (2 * max(len(cases), 1)), _LEAST_SECONDS), _MOST_SECONDS)
    each = float(team.gather([each]).min())
    rows: dict[str, dict[str, list[Sequence[float]]]] = {}
    left_out = []
    names = Counter[str]()
    for spec, tensor in cases:
        dtype = tensor.values.dtype.name
        name = f"{spec} of {tensor.name} {dtype}"
        names[name] += 1
        if names[name] > 1:  # files of several folders may have one name
            name += f" ({names[name]})"
        if not progress.has(name) and team.gather([time.monotonic() > until]).any():
            left_out.append(name)
            continue
        row = progress.step(name, 4, partial(_coded, team, spec, tensor, each))
        rows.setdefault(spec, {}).setdefault(dtype, []).append(row)
    return {spec: _row(by_dtype) for spec, by_dtype in rows.items()}, tuple(left_out)


def _coded(team: Team, spec: str, tensor: Tensor, seconds: float) -> np.ndarray:
    found = _measure(spec, tensor.values, seconds)
    ratio = found["value_bytes"] / found["encoded_bytes"]
    # Without a merge rate (dtype without addition), values are only decoded.
    merge = found["merge_rate"] or found["decode_rate"]
    row = team.gather([ratio, found["encode_rate"], found["decode_rate"], merge])
    return np.median(row, axis=0)


def _row(by_dtype: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Medians over the tensors of each dtype; the dtype with the lowest ratio is the default."""
    names = ("ratio", *(f"{name}_bytes_per_second" for name in ("encode", "decode", "merge")))
    made = {
        dtype: dict(zip(names, map(float, np.median(rows, axis=0)), strict=True))
        for dtype, rows in by_dtype.items()
    }
    return min(made.values(), key=lambda row: row["ratio"]) | {"dtypes": made}


def _measure(spec: str, values: np.ndarray, seconds: float) -> dict[str, Any]:
    return engine.load().measure_codec(
        codecs.canonical(spec),
        values.dtype.name,
        values.view(np.uint8),
        None,
        max(_CHUNK_BYTES // values.dtype.itemsize, 1),
        False,
        seconds,
    )

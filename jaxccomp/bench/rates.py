"""Rates of memory and of codecs, measured on all ranks at once, as they share caches and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxccomp import codecs
from jaxccomp._native import engine
from jaxccomp.bench.files import Tensor
from jaxccomp.bench.team import Team

_CHUNK_BYTES = 1 << 19
_MEMORY_BYTES = 16 << 20
_LEAST_SECONDS, _MOST_SECONDS = 0.02, 0.25  # of a codec


def memory(team: Team) -> dict[str, float]:
    """What one core copies and adds up."""
    values = np.ones(_MEMORY_BYTES // 4, np.float32)
    team.gather([0.0])  # all begin together
    found = _measure("raw", values, _MOST_SECONDS)
    copy, merge = np.median(team.gather([found["copy_rate"], found["merge_rate"]]), axis=0)
    return {"copy_bytes_per_second": float(copy), "merge_bytes_per_second": float(merge)}


def coding(
    team: Team,
    specs: Sequence[str],
    tensors: Sequence[Tensor],
    until: float,
    tell: Callable[[str], None],
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Ratios and rates of codecs.

    Args:
      team: who measures.
      specs: of codecs.
      tensors: that each of them codes.
      until: when to stop, by ``time.monotonic`` of the rank that comes there first.
      tell: is told what goes on.

    Returns:
      Rows by spec, and what there was no time for.
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
    rows: dict[str, dict[str, list[np.ndarray]]] = {}
    left_out = []
    for spec, tensor in cases:
        dtype = tensor.values.dtype.name
        name = f"{spec} of {tensor.name} {dtype}"
        if team.gather([time.monotonic() > until]).any():
            left_out.append(name)
            continue
        tell(name)
        found = _measure(spec, tensor.values, each)
        ratio = found["value_bytes"] / found["encoded_bytes"]
        # What cannot be added up is only decoded.
        merge = found["merge_rate"] or found["decode_rate"]
        row = team.gather([ratio, found["encode_rate"], found["decode_rate"], merge])
        rows.setdefault(spec, {}).setdefault(dtype, []).append(np.median(row, axis=0))
    return {spec: _row(by_dtype) for spec, by_dtype in rows.items()}, tuple(left_out)


def _row(by_dtype: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Any]:
    """The medians of all tensors of a dtype; of other dtypes, those of the dtype coded least."""
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

"""Measures ratio, speed and error of codecs, with memcpy in the same run.

Speeds are raw bytes per second on one core: medians of rounds in which encode, decode, decode_merge
and memcpy take turns. ``cached``: one chunk repeatedly, as in a pipelined collective;
``streaming``: passes over more data than the caches hold.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import numpy as np

from jaxccomp import codecs
from jaxccomp._native import engine, terminal
from jaxccomp._native.version import __version__
from jaxccomp.bench import machine
from jaxccomp.bench.files import Tensor

WORKING_SETS = ("cached", "streaming")

# The default specs. Libraries are measured with and without the byte shuffle, at their fast levels
# and at one slower level with a better ratio.
SPECS = (
    "raw", "lossless", "lz4", "lz4:shuffle=none", "zstd", "zstd:shuffle=none", "zstd:level=3",
    "bf16", "fp16", "bf16|lossless", "fp8_e4m3", "fp8_e5m2", "int8", "int8:block=256",
    "int8:rounding=stochastic", "int4", "int4|zstd", "int2", "onebit", "ternary", "tbq", "topk",
    "randomk", "dgc", "zfp:rate=8", "zfp:rate=16",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement; rates are GB/s (1e9 raw bytes per second)."""

    tensor: str
    codec: str
    dtype: str
    working_set: str
    chunk_bytes: int
    ratio: float
    encode_GBps: float
    decode_GBps: float
    merge_GBps: float
    memcpy_GBps: float
    rel_l2: float
    max_abs_error: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """The parameters of a measurement."""

    specs: tuple[str, ...] = SPECS
    working_sets: tuple[str, ...] = WORKING_SETS
    chunk_bytes: int = 1 << 20
    streaming_bytes: int = 1 << 27
    seconds: float = 0.25


def run(plan: Plan, tensors: list[Tensor], tell: Callable[[str], None]) -> Iterator[Row]:
    """Measures every codec of the plan on every tensor whose dtype it supports."""
    for tensor in tensors:
        dtype = tensor.values.dtype.name
        for spec in plan.specs:
            if dtype not in engine.load().describe_codec(codecs.canonical(spec))["dtypes"]:
                continue
            for working_set in plan.working_sets:
                tell(f"{tensor.name} {dtype}: {spec}, {working_set}")
                yield _measure(plan, tensor, spec, working_set)


def _measure(plan: Plan, tensor: Tensor, spec: str, working_set: str) -> Row:
    cached = working_set == "cached"
    values, ref = tensor.values, tensor.ref
    if not cached:
        times = -(-plan.streaming_bytes // values.nbytes)
        values = np.tile(values, times)
        ref = None if ref is None else np.tile(ref, times)
    measured = engine.load().measure_codec(
        codecs.canonical(spec),
        values.dtype.name,
        values.view(np.uint8),
        None if ref is None else ref.view(np.uint8),
        max(plan.chunk_bytes // values.dtype.itemsize, 1),
        cached,
        plan.seconds,
    )
    rel_l2, max_error = _errors(spec, tensor)
    return Row(
        tensor.name,
        spec,
        values.dtype.name,
        working_set,
        plan.chunk_bytes,
        measured["value_bytes"] / measured["encoded_bytes"],
        measured["encode_rate"] / 1e9,
        measured["decode_rate"] / 1e9,
        measured["merge_rate"] / 1e9,
        measured["copy_rate"] / 1e9,
        rel_l2,
        max_error,
    )


def _errors(spec: str, tensor: Tensor) -> tuple[float, float]:
    """The relative L2 norm of the error, and its maximum."""
    if engine.load().describe_codec(spec)["lossless"]:
        return 0.0, 0.0
    decoded = codecs.decode(codecs.encode(spec, tensor.values, tensor.ref), tensor.ref)
    x = tensor.values.astype(np.float64)
    difference = decoded.astype(np.float64) - x
    norm = float(np.linalg.norm(x))
    return float(np.linalg.norm(difference)) / norm if norm else 0.0, float(
        np.abs(difference).max()
    )


def facts() -> dict[str, Any]:
    """The versions and the processor of the measurements."""
    described = engine.load().describe()
    return {
        "jaxccomp": __version__,
        "numpy": np.__version__,
        "processor": machine.processor(),
        "instruction_set": described["instruction_set"],
    }


def write(rows: list[Row], file: TextIO) -> None:
    """Writes one JSON object per line; the first has the `facts`."""
    for each in ({"facts": facts()}, *map(line, rows)):
        print(json.dumps(each), file=file)


def line(row: Row) -> dict[str, Any]:
    """A measurement as a dict, rounded to five digits."""
    return {
        key: float(f"{value:.5g}") if isinstance(value, float) else value
        for key, value in dataclasses.asdict(row).items()
    }


def markdown(rows: list[Row]) -> str:
    """Tables as Markdown: one per tensor, cached and streaming side by side."""
    heads = ("codec", "ratio", "encode", "decode", "merge", "streaming encode", "decode", "rel. L2")
    lines = []
    for kind in dict.fromkeys((row.tensor, row.dtype) for row in rows):
        chosen = [row for row in rows if (row.tensor, row.dtype) == kind]
        limits = ", ".join(
            f"{name} {copy_rate(chosen, name):.3g}"
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
        lines += [terminal.markdown(heads, table), ""]
    return "\n".join(lines).rstrip() + "\n"


def copy_rate(rows: list[Row], working_set: str) -> float:
    """The median memcpy rate in rows of our own codecs (peers use other working sets)."""
    return statistics.median(
        row.memcpy_GBps
        for row in rows
        if row.working_set == working_set and not row.codec.startswith("peer")
    )


def _rates(row: Row | None, *names: str) -> list[str]:
    return ["" if row is None else _short(getattr(row, f"{name}_GBps")) for name in names]


def _short(value: float) -> str:
    return "" if value == 0 else f"{value:.3g}"

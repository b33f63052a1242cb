"""Ratio, speed and error of codecs, beside memcpy and peers in the same run.

Speeds are bytes of values per second on one core, medians of rounds in which encode, decode,
decode_merge and memcpy take turns. ``cached``: a chunk again and again, as a pipelined collective
sees it; ``streaming``: one pass after the other over more than the caches hold.
"""

from __future__ import annotations

import dataclasses
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxccomp import codecs
from jaxccomp._native import engine
from jaxccomp._native.version import __version__
from jaxccomp.bench import machine
from jaxccomp.bench.files import Tensor

WORKING_SETS = ("cached", "streaming")

# What is measured when nothing is named. Libraries stand here as users would call them: with the
# byte shuffle and without, at their fast levels and at one that is worth its time.
SPECS = (
    "raw", "lossless", "lz4", "lz4:shuffle=none", "zstd", "zstd:shuffle=none", "zstd:level=3",
    "bf16", "fp16", "bf16|lossless", "fp8_e4m3", "fp8_e5m2", "int8", "int8:block=256",
    "int8:rounding=stochastic", "int4", "int4|zstd", "int2", "onebit", "ternary", "tbq", "topk",
    "randomk", "dgc", "zfp:rate=8", "zfp:rate=16",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement; rates are GB/s (1e9 bytes of values)."""

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
    """What to measure."""

    specs: tuple[str, ...] = SPECS
    working_sets: tuple[str, ...] = WORKING_SETS
    chunk_bytes: int = 1 << 20
    streaming_bytes: int = 1 << 27
    seconds: float = 0.25


def run(plan: Plan, tensors: list[Tensor], tell: Callable[[str], None]) -> Iterator[Row]:
    """Measures every codec of the plan on every tensor that it codes."""
    for tensor in tensors:
        dtype = tensor.values.dtype.name
        for spec in plan.specs:
            if dtype not in engine.load().describe_codec(codecs.canonical(spec))["dtypes"]:
                continue
            for working_set in plan.working_sets:
                tell(f"{tensor.name} {dtype}: {spec}, {working_set}")
                yield _measure(plan, tensor, spec, working_set)
        if why_no_zipnn() == "" and tensor.ref is None and dtype in _ZIPNN:
            tell(f"{tensor.name} {dtype}: zipnn")
            yield _measure_zipnn(plan, tensor)


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
    rel_l2, most = _errors(spec, tensor)
    return Row(
        tensor.name,
        spec,
        values.dtype.name,
        working_set,
        plan.chunk_bytes,
        measured["value_bytes"] / measured["encoded_bytes"],
        *(measured[name] / 1e9 for name in ("encode_rate", "decode_rate", "merge_rate")),
        measured["copy_rate"] / 1e9,
        rel_l2,
        most,
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


# The peer ZipNN, where it is installed: its own names of dtypes.
_ZIPNN = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}


def why_no_zipnn() -> str:
    """Why ZipNN cannot be measured; empty when it can."""
    try:
        importlib.import_module("zipnn")
    except ImportError as error:
        return f"zipnn: {error}"
    return ""


def _measure_zipnn(plan: Plan, tensor: Tensor) -> Row:
    """One thread, as all others, at the length of input that it is fastest with."""
    lengths = {min(tensor.values.nbytes, 1 << shift) for shift in (18, 20, 22, 24)}
    rows = [_measure_zipnn_at(length, plan, tensor) for length in sorted(lengths)]
    best = max(rows, key=lambda row: row.encode_GBps)
    return dataclasses.replace(best, decode_GBps=max(row.decode_GBps for row in rows))


def _measure_zipnn_at(length: int, plan: Plan, tensor: Tensor) -> Row:
    zipnn = importlib.import_module("zipnn")
    dtype = tensor.values.dtype.name
    coder = zipnn.ZipNN(
        input_format="byte", bytearray_dtype=_ZIPNN[dtype], threads=1, is_streaming=False
    )
    raw = bytearray(tensor.values.view(np.uint8)[:length].tobytes())
    packed = coder.compress(bytearray(raw))
    if bytes(coder.decompress(packed)) != bytes(raw):
        raise RuntimeError("zipnn did not give back what it was given")
    times: dict[str, list[float]] = {"encode": [], "decode": [], "copy": []}
    target = bytearray(length)
    end = time.perf_counter() + plan.seconds
    while time.perf_counter() < end or len(times["copy"]) < 3:
        given = bytearray(raw)  # compress may write into its argument
        for name, call in (
            ("encode", lambda given=given: coder.compress(given)),
            ("decode", lambda: coder.decompress(packed)),
            ("copy", lambda: target.__setitem__(slice(None), raw)),
        ):
            begun = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begun)
    rates = {name: length / statistics.median(taken) / 1e9 for name, taken in times.items()}
    return Row(
        tensor.name, "peer: zipnn", dtype, "cached", length, length / len(packed),
        rates["encode"], rates["decode"], 0.0, rates["copy"], 0.0, 0.0,
    )  # fmt: skip


def facts() -> dict[str, Any]:
    """What the measurements were made with."""
    described = engine.load().describe()
    return {
        "jaxccomp": __version__,
        "numpy": np.__version__,
        "processor": machine.processor(),
        "instruction_set": described["instruction_set"],
        "why_no_zipnn": why_no_zipnn(),
    }

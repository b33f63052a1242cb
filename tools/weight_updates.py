"""Measures codecs on small updates of bfloat16 weights, and the entropy bounds of their ratios.

    python tools/weight_updates.py --output docs/results/delta.jsonl

The inputs are weights before and after an update: synthetic ones (normal, standard deviation 0.02,
steps of known size), and the weights of a transformer that this script trains at several learning
rates. For each pair:

* ratios of ``delta``, of ``lossless`` of the XOR, and of other formats: zstd of the XOR; indices
  and values, zstd -3 (the format of PULSE, arXiv 2602.03839); gaps between indices and differences
  of ordered bits, each zstd -19;
* two bounds: the entropy of the XOR, and of the step given the exponent of the reference;
* speeds on one core, with a chunk that stays in the cache.

Needs `pip install zstandard`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import ml_dtypes
import numpy as np
import zstandard

from jaxccomp import codecs
from jaxccomp._native import engine
from jaxccomp.bench import codecs as bench
from jaxccomp.bench import tensors

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SYNTHETIC = 1 << 22  # values
CHUNK_BYTES = 1 << 19
LEARNING_RATES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
STEPS_APART = (1, 4, 16)
WARM_UP = 300  # steps before measuring, so that weights look trained


class Pair(NamedTuple):
    """Bits of bfloat16 weights before and after an update."""

    name: str
    before: np.ndarray
    after: np.ndarray


def bits(values: np.ndarray) -> np.ndarray:
    """The bits of values rounded to bfloat16."""
    return np.asarray(values).astype(BFLOAT16).view(np.uint16)


def synthetic() -> Iterator[Pair]:
    """Weights before and after a step in float32, both rounded to bfloat16."""
    random = np.random.default_rng(0)
    weights = random.normal(0, 0.02, SYNTHETIC).astype(np.float32)

    def pair(name: str, rate: float, steps: np.ndarray) -> Pair:
        signs = np.where(random.random(SYNTHETIC) < 0.5, 1, -1)
        moved = weights + (rate * steps * signs).astype(np.float32)
        return Pair(name, bits(weights), bits(moved))

    yield pair("synthetic, normal, 1e-6", 1e-6, np.abs(random.normal(0, 2 / 3, SYNTHETIC)))
    for rate in (1e-4, 1e-5, 1e-6, 1e-7):
        yield pair(f"synthetic, gamma, {rate:.0e}", rate, random.gamma(0.2, 2.1, SYNTHETIC))
    nothing = np.zeros(SYNTHETIC)
    yield pair("synthetic, 0.1 % by one", 0.0, nothing)._replace(
        after=bits(weights) ^ (random.random(SYNTHETIC) < 0.001).astype(np.uint16)
    )


def trained() -> Iterator[Pair]:
    """Weights of a transformer, for each learning rate and number of steps between them."""
    training = tensors.Training()
    for _ in range(WARM_UP):
        training.step(1e-3)
    warm = training.master, training.state
    for rate in LEARNING_RATES:
        training.master, training.state = warm
        seen = [bits(tensors.flat(training.master))]
        for _ in range(max(STEPS_APART)):
            training.step(rate)
            seen.append(bits(tensors.flat(training.master)))
        for apart in STEPS_APART:
            yield Pair(f"trained, {rate:.0e}, {apart} apart", seen[-1 - apart], seen[-1])


def steps_of(pair: Pair) -> np.ndarray:
    """The step of each weight in representable values; positive away from zero."""
    before, after = (
        np.where(x >> 15 == 1, -(x & 0x7FFF).astype(np.int32) - 1, x.astype(np.int32))
        for x in (pair.before.astype(np.int32), pair.after.astype(np.int32))
    )
    return np.where(pair.before >> 15 == 1, -1, 1) * (after - before)


def entropy_bits(symbols: np.ndarray) -> float:
    """Entropy of all symbols together, from their frequencies."""
    counts = np.unique(symbols, return_counts=True)[1]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def bounds(pair: Pair) -> dict[str, float]:
    """Upper bounds of the ratio of single-value codes of the XOR, and of the step by exponent."""
    steps, exponents = steps_of(pair), pair.before >> 7 & 255
    given = sum(entropy_bits(steps[exponents == e]) for e in np.unique(exponents))
    all_bits = 8 * pair.before.nbytes
    return {
        "bound_xor": all_bits / max(entropy_bits(pair.before ^ pair.after), 1e-9),
        "bound_given_exponent": all_bits / max(given, 1e-9),
    }


def zstd(data: bytes, level: int) -> int:
    """The compressed size in bytes."""
    return len(zstandard.ZstdCompressor(level=level).compress(data))


def leb128(numbers: np.ndarray) -> bytes:
    """Unsigned integers in LEB128: 7 bits per byte."""
    rest = numbers.astype(np.uint64)
    columns = []
    while True:
        columns.append(
            (rest & 127).astype(np.uint8) | np.where(rest > 127, 128, 0).astype(np.uint8)
        )
        if not (rest > 127).any():
            break
        rest = np.where(rest > 127, rest >> 7, 0)
    table = np.stack(columns, 1)
    used = np.ones(table.shape, bool)
    for i in range(1, table.shape[1]):
        used[:, i] = used[:, i - 1] & (table[:, i - 1] >= 128)
    return table[used].tobytes()


def sparse_sizes(pair: Pair) -> dict[str, int]:
    """Bytes of the changed values: as indices and values, and as gaps and differences."""
    where = np.flatnonzero(pair.before != pair.after)
    steps = steps_of(pair)[where]
    zigzag = np.where(steps < 0, -2 * steps - 1, 2 * steps)
    plain = where.astype(np.uint32).tobytes() + pair.after[where].tobytes()
    gaps = np.diff(where, prepend=-1) - 1
    return {
        "index_value_zstd3": zstd(plain, 3),
        "gaps_differences_zstd19": zstd(leb128(gaps), 19) + zstd(leb128(zigzag), 19),
    }


def frame_bytes(codec: str, pair: Pair) -> int:
    """The size of the frame of an update in bytes."""
    values, ref = (x.view(BFLOAT16) for x in (pair.after, pair.before))
    return len(codecs.encode(codec, values, ref, checksum=False, chunk_bytes=CHUNK_BYTES))


def rate(call: Callable[[], object], nbytes: int, seconds: float) -> float:
    """The median speed in GB/s."""
    taken, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 3:
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return nbytes / statistics.median(taken) / 1e9


def speeds(pair: Pair, seconds: float) -> dict[str, float]:
    """Speeds of delta, of lossless, and of zstd on the XOR of one chunk."""
    row: dict[str, float] = {}
    for codec in ("delta", "lossless"):
        measured = engine.load().measure_codec(
            codec, "bfloat16", pair.after.view(np.uint8), pair.before.view(np.uint8),
            CHUNK_BYTES // 2, True, seconds,
        )  # fmt: skip
        row |= {f"{codec}_{k}_GBps": measured[f"{k}_rate"] / 1e9 for k in ("encode", "decode")}
    chunk = (pair.before ^ pair.after)[: CHUNK_BYTES // 2].tobytes()
    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    code = compressor.compress(chunk)
    row["zstd1_encode_GBps"] = rate(lambda: compressor.compress(chunk), len(chunk), seconds)
    row["zstd1_decode_GBps"] = rate(lambda: decompressor.decompress(code), len(chunk), seconds)
    return row


def measure(pair: Pair, seconds: float) -> dict[str, object]:
    """One row of the results."""
    nbytes, xor = pair.before.nbytes, (pair.before ^ pair.after).tobytes()
    sizes = {
        "delta": frame_bytes("delta", pair),
        "lossless": frame_bytes("lossless", pair),
        "zstd1_of_xor": zstd(xor, 1),
        "zstd19_of_xor": zstd(xor, 19),
        **sparse_sizes(pair),
    }
    ratios = {name: nbytes / size for name, size in sizes.items()}
    figures = ratios | bounds(pair) | speeds(pair, seconds)
    return {
        "update": pair.name,
        "values": pair.before.size,
        "changed": float(f"{(pair.before != pair.after).mean():.4g}"),
    } | {name: float(f"{value:.4g}") for name, value in figures.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.5, help="time to measure each speed")
    arguments = parser.parse_args()
    with arguments.output.open("w", encoding="utf-8") as file:
        print(json.dumps({"facts": bench.facts() | {"chunk_bytes": CHUNK_BYTES}}), file=file)
        for pairs in (synthetic(), trained()):
            for pair in pairs:
                row = measure(pair, arguments.seconds)
                print(json.dumps(row), file=file, flush=True)
                print(row, flush=True)


if __name__ == "__main__":
    main()

"""Counts the instructions that the kernels of the codec `lossless` issue for a word, on sm_90.

    python tests/gpu/count_instructions.py LOSSLESS_CUBIN OUTPUT [--nvdisasm NVDISASM]

Needs no GPU: the machine code runs in an interpreter (sass.py), which counts what each warp issues.
Values are 65,536 weights, normally distributed; they have to come out of decoding as they were. The
output has a line for each layout and kernel: lane-instructions a word (32 for each that a warp
issues, whether all of its lanes take part or not), by the kind of unit that executes them, and
passes of shared memory a word, also times 32. `--profile` prints where they are.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import struct
import subprocess
import sys

import numpy as np
import sass

WORDS = 1 << 16
SEGMENT, BLOCK = 1 << 15, 1 << 14  # words of each
LAYOUTS = {"bfloat16": 4, "float32": 6}
ANALYZE_THREADS, PARSE_THREADS, CODE_THREADS = 128, 64, 512
MEMORY = 4 << 20
SHARED = 200 << 10  # more than any kernel asks for


def weights(layout: str) -> np.ndarray:
    """Words of values that are like a model's."""
    values = np.random.default_rng(1).normal(0, 0.02, WORDS).astype(np.float32).view(np.uint32)
    if layout == "float32":
        return values
    rounded = values + 0x7FFF + (values >> 16 & 1)
    return (rounded >> 16).astype(np.uint16)


class Runner:
    """Kernels of a layout, one after the other on the same memory."""

    def __init__(self, kernels: dict[str, str], layout: str):
        """Of what nvdisasm has printed."""
        self.kernels = kernels
        self.layout = LAYOUTS[layout]
        self.memory = sass.Memory(MEMORY, sass.GLOBAL_BASE)
        self.used = sass.GLOBAL_BASE
        self.counts: dict[str, sass.Counts] = {}

    def take(self, data: np.ndarray | int) -> int:
        """The address of an array, or of as many zero bytes."""
        data = np.zeros(data, np.uint8) if isinstance(data, int) else data.view(np.uint8)
        at = self.used
        self.memory.bytes[at - sass.GLOBAL_BASE :][: len(data)] = data
        self.used += (len(data) + 255) // 256 * 256
        return at

    def read(self, at: int, size: int, dtype) -> np.ndarray:
        """What lies at an address."""
        return self.memory.bytes[at - sass.GLOBAL_BASE :][:size].view(dtype).copy()

    def launch(self, name: str, arguments: list[int], blocks: int, threads: int) -> None:
        """Runs a kernel, one block of threads after the other."""
        marks = f"{name}KernelILNS_8lossless6LayoutE{self.layout}E"
        (text,) = (text for mangled, text in self.kernels.items() if marks in mangled)
        code = sass.Code(text)
        constants = bytearray(0x1000)
        struct.pack_into("<6I", constants, 0, threads, 1, 1, blocks, 1, 1)
        struct.pack_into(f"<{len(arguments)}Q", constants, sass.PARAMETERS, *arguments)
        counts = sass.Counts(code)
        for index in range(blocks):
            block = sass.Block(code, self.memory, bytes(constants), threads, SHARED)
            block.run(index, counts)
        self.counts[name.lstrip("0123456789").lower()] = counts


def round_trip(kernels: dict[str, str], layout: str) -> tuple[Runner, int]:
    """Encodes and decodes; returns what was counted, and the payload's bytes."""
    words = weights(layout)
    run = Runner(kernels, layout)
    segments, blocks = WORDS // SEGMENT, WORDS // BLOCK
    src, dst, out = run.take(words), run.take(words.nbytes + 4096), run.take(words.nbytes)
    plans, state, counter = run.take(1 << 12), run.take(8 * segments), run.take(4)
    size, status, parsed = run.take(8), run.take(4), run.take(1 << 14)
    run.launch("13Analyze", [src, 0, WORDS, plans, state, counter, 1], segments, ANALYZE_THREADS)
    run.launch(
        "12Encode", [src, 0, WORDS, dst, plans, state, counter, size, 0, 0, 1], 1, CODE_THREADS
    )
    (payload,) = run.read(size, 8, np.int64)
    ends = run.read(state, 8 * segments, np.int64) & ((1 << 62) - 1)
    offsets = run.take(8 + np.concatenate([[0], ends[:-1]]).astype(np.int64))
    run.launch(
        "11Parse", [dst, int(payload), 0, WORDS, offsets, status, parsed],
        -(-blocks // PARSE_THREADS), PARSE_THREADS,
    )  # fmt: skip
    run.launch("12Decode", [dst, WORDS, parsed, out, 0, status, 0, 1], 1, CODE_THREADS)
    if (
        run.read(status, 4, np.int32)[0]
        or (run.read(out, words.nbytes, words.dtype) != words).any()
    ):
        raise SystemExit(f"{layout}: values have not come back")
    return run, int(payload)


def profile(counts: sass.Counts, name: str) -> None:
    """Prints instructions between labels, what is issued most first."""
    code = counts.code
    starts = sorted({0, *code.labels.values()} - {len(code.steps)})
    rows = []
    for first, end in zip(starts, [*starts[1:], len(code.steps)], strict=True):
        issued = counts.issued[first:end]
        rows.append((int(issued.sum()), first, end - first, int(issued.max(initial=0)),
                     int(counts.passes[first:end].sum())))  # fmt: skip
    for total, first, length, times, passes in sorted(rows, reverse=True)[:24]:
        a_word = 32 * total / WORDS
        print(f"{name:8} {a_word:6.2f} a word at {code.places[first]:5x}: {length:4} instructions, "
              f"{times} times, {32 * passes / WORDS:.2f} passes a word")  # fmt: skip


def main() -> int:
    """Writes the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cubin", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--nvdisasm", default="nvdisasm")
    parser.add_argument("--profile", action="store_true", help="print where instructions are")
    asked = parser.parse_args()
    text = subprocess.run(
        [asked.nvdisasm, "-c", str(asked.cubin)], capture_output=True, text=True, check=True
    ).stdout
    target = re.search(r"\.target\s+sm_(\d+)", text)
    if target and target[1] != "90":
        raise SystemExit(f"{asked.cubin} is for sm_{target[1]}, not sm_90")
    kernels = sass.sections(text)
    lines = []
    for layout in LAYOUTS:
        run, payload = round_trip(kernels, layout)
        for name, counts in run.counts.items():
            row = {"layout": layout, "kernel": name}
            row["a_word"] = round(32 * int(counts.issued.sum()) / WORDS, 2)
            for kind, times in sorted(counts.by_kind().items()):
                row[kind] = round(32 * times / WORDS, 2)
            row["shared_passes"] = round(32 * int(counts.passes.sum()) / WORDS, 2)
            row["payload_bytes_a_word"] = round(payload / WORDS, 3)
            lines.append(row)
            print(json.dumps(row))
            if asked.profile:
                profile(counts, name)
    asked.output.write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Random programs of collectives that mix backends: made from a seed, and worked out with NumPy.

A program is a list of steps. Operands are small whole numbers, so that every sum is exact in every
dtype and order; what a step sends may depend on what the one before it has given. Which program a
launch runs is a matter of seed and number alone: any of them can be made again.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import ml_dtypes
import numpy as np


@dataclasses.dataclass(frozen=True)
class Way:
    """A backend and a codec."""

    backend: str
    codec: str | None = None

    @property
    def is_exact(self) -> bool:
        return self.codec in (None, "lossless")

    def __str__(self) -> str:
        return f"{self.backend} {self.codec or 'raw'}"


@dataclasses.dataclass(frozen=True)
class Step:
    """One collective.

    Attributes:
      op: a row of OPS.
      way: how it is run.
      dtype: of its operand.
      count: elements of a row.
      root: of a bcast.
      follows: whether its operand depends on the result before it.
    """

    op: str
    way: Way
    dtype: str
    count: int
    root: int
    follows: bool


Program = tuple[Step, ...]

WAYS = (
    Way("native"),
    Way("native", "lossless"),
    Way("native", "int8"),
    Way("nccl"),
    Way("xla"),
    Way("xla", "int8"),
)
# name: whether its operand has a row for each rank.
OPS = {
    "bcast": False,
    "sum": False,
    "max": False,
    "allgather": False,
    "reduce_scatter": True,
    "alltoall": True,
}
DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
}
COUNTS = (1, 3, 700, 5_001, 90_000)
MOST_STEPS = 8
# Of so many launches one runs a program that none before it has run: compiling takes longest.
FRESH = 4
LARGEST = 4  # of an operand, less what it follows
# Of a lossy result, in parts of the largest value that there can be.
TOLERANCE = 0.05


def make(seed: int, number: int, size: int, ways: Sequence[Way] = WAYS) -> Program:
    """The ``number``-th program of a seed, for so many ranks."""
    choose = random.Random(f"{seed}/{number}/{size}/{' '.join(map(str, ways))}")
    steps: list[Step] = []
    for _ in range(choose.randint(1, MOST_STEPS)):
        way, dtype = choose.choice(ways), choose.choice(list(DTYPES))
        ops = [op for op in OPS if way.is_exact or op != "max"]
        if not way.is_exact and dtype == "int32":
            dtype = "float32"  # a codec that lets integers through would be exact unawares
        follows = bool(steps) and steps[-1].way.is_exact and choose.random() < 0.5
        op, count = choose.choice(ops), choose.choice(COUNTS)
        steps.append(Step(op, way, dtype, count, choose.randrange(size), follows))
    return tuple(steps)


def launched(seed: int, launch: int) -> int:
    """The number of the program that a launch runs."""
    newest, old = divmod(launch, FRESH)
    return random.Random(f"{seed}/launch {launch}").randrange(newest + 1) if old else newest


def base(step: Step, index: int, rank: int, size: int, launch: int) -> np.ndarray:
    """What a rank passes in, but for what it follows; `launch` alone differs between launches."""
    shape = (size, step.count) if OPS[step.op] else (step.count,)
    flat = np.arange(int(np.prod(shape)), dtype=np.int32) * 5 + 3 * rank + index + launch
    return (flat % 7 - 2).reshape(shape).astype(np.int32)


def carried(result: np.ndarray) -> np.ndarray:
    """What the next step adds to its operand: 0, 1 or 2."""
    return result.reshape(-1)[0].astype(np.int32) % 3


def expected(program: Program, size: int, launch: int) -> list[list[np.ndarray]]:
    """Exact results of all ranks: by rank, then by step."""
    results: list[list[np.ndarray]] = [[] for _ in range(size)]
    for index, step in enumerate(program):
        operands = []
        for rank in range(size):
            operand = base(step, index, rank, size, launch)
            if step.follows:
                operand = operand + carried(results[rank][-1])
            operands.append(operand)
        for rank in range(size):
            values = _combined(step, operands, rank)
            results[rank].append(values.astype(DTYPES[step.dtype]))
    return results


def _combined(step: Step, operands: list[np.ndarray], rank: int) -> np.ndarray:
    return {
        "bcast": lambda: operands[step.root],
        "sum": lambda: np.sum(operands, axis=0),
        "max": lambda: np.max(operands, axis=0),
        "allgather": lambda: np.stack(operands),
        "reduce_scatter": lambda: np.sum(operands, axis=0)[rank],
        "alltoall": lambda: np.stack([each[rank] for each in operands]),
    }[step.op]()


def wrong(step: Step, got: np.ndarray, want: np.ndarray, size: int) -> str:
    """What is wrong with a result; empty when nothing is. Exact ways are compared bit for bit."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if step.way.is_exact:
        # Of zeros either sign will do: a sum may be of both.
        bad = (got + 0).view(np.uint8) != (want + 0).view(np.uint8)
        same = not bad.any()
    else:
        near = TOLERANCE * size * (LARGEST + 2)
        off = np.abs(got.astype(np.float64) - want.astype(np.float64))
        same = bool(np.all(off <= near))  # not so for a NaN
    if same:
        return ""
    differ = np.flatnonzero(got.reshape(-1) != want.reshape(-1))
    place = int(differ[0]) if differ.size else 0
    return (
        f"{differ.size} of {got.size} values, the first at {place}: "
        f"{got.reshape(-1)[place]} instead of {want.reshape(-1)[place]}"
    )


def described(program: Program) -> list[str]:
    """A line for each step."""
    return [
        f"{step.op} {step.way}, {step.dtype}[{step.count}]"
        + (f", root {step.root}" if step.op == "bcast" else "")
        + (", follows" if step.follows else "")
        for step in program
    ]

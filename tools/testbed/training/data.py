"""Parameters and data, made with NumPy: the same for workers in JAX and in PyTorch."""

from __future__ import annotations

import dataclasses
import pathlib
import sysconfig
from collections.abc import Iterator
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Task:
    """A model and its data.

    Attributes:
      layers: the widths of an MLP; (width, depth, heads, context) of a transformer.
      batch: examples per rank and step.
      rate: the learning rate of SGD.
    """

    layers: tuple[int, ...]
    batch: int
    rate: float


MOMENTUM = 0.9
_HELD_OUT = 2000

TASKS = {
    # 5.9 M parameters, nearly all in three dense layers.
    "mlp": Task((784, 1536, 1536, 1536, 10), batch=32, rate=0.005),
    # 3.3 M parameters; trained on the bytes of Python's standard library.
    "transformer": Task((256, 4, 4, 64), batch=4, rate=0.02),
}


def init(name: str, seed: int) -> Any:
    """The initial parameters, the same on all ranks."""
    random = np.random.default_rng(seed)

    def dense(rows: int, columns: int, scale: float = 1.0) -> dict[str, np.ndarray]:
        kernel = scale * random.standard_normal((rows, columns)) / np.sqrt(rows)
        return {"kernel": kernel.astype(np.float32), "bias": np.zeros(columns, np.float32)}

    layers = TASKS[name].layers
    if name == "mlp":
        sizes = zip(layers[:-1], layers[1:], strict=True)
        return {f"layer_{i}": dense(a, b, 1.4) for i, (a, b) in enumerate(sizes)}
    width, depth, _, context = layers
    params = {
        "embed": (0.02 * random.standard_normal((256, width))).astype(np.float32),
        "place": (0.02 * random.standard_normal((context, width))).astype(np.float32),
    }
    for i in range(depth):
        params[f"layer_{i}"] = {
            "qkv": dense(width, 3 * width),
            "out": dense(width, width, 0.3),
            "up": dense(width, 4 * width),
            "down": dense(4 * width, width, 0.3),
        }
    return params | {"readout": dense(width, 256)}


def batches(name: str, rank: int, ranks: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields a rank's batches endlessly."""
    random = np.random.default_rng((seed, rank))
    task = TASKS[name]
    if name == "mlp":
        x, y = _images(seed)
        share = np.arange(rank, len(x) - _HELD_OUT, ranks)
        while True:
            chosen = random.choice(share, task.batch, replace=False)
            yield x[chosen], y[chosen]
    text = _text()[: -_HELD_OUT * task.layers[3]]
    while True:
        begins = random.integers(0, len(text) - task.layers[3] - 1, task.batch)
        yield _windows(text, begins, task.layers[3])


def held_out(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets on which no rank trains."""
    if name == "mlp":
        x, y = _images(seed)
        return x[-_HELD_OUT:], y[-_HELD_OUT:]
    length = TASKS[name].layers[3]
    text = _text()[-_HELD_OUT * length :]
    return _windows(text, np.arange(0, len(text) - length - 1, length * 8), length)


def _images(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of ten overlapping clusters, made non-linear so that no plane separates them."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((10, 32)).astype(np.float32)
    labels = random.integers(0, 10, 20_000)
    hidden = centres[labels] + 1.7 * random.standard_normal((20_000, 32)).astype(np.float32)
    spread = (random.standard_normal((32, 784)) / np.sqrt(32)).astype(np.float32)
    return np.sin(hidden @ spread), labels


def _text() -> np.ndarray:
    """Sources of Python's standard library as bytes, in the order of file names."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))[:120]
    return np.frombuffer(b"\n".join(each.read_bytes() for each in files), np.uint8)


def _windows(text: np.ndarray, begins: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    rows = text[begins[:, None] + np.arange(length + 1)].astype(np.int32)
    return rows[:, :-1], rows[:, 1:]

"""Writes the inputs of a comparison to files for its workers."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from jaxccomp import errors
from jaxccomp.bench import files

# Kinds of inputs: dtype, the preferred tensor's name, and whether the input needs an earlier state,
# the delta base (ref) that receivers hold.
KINDS = {
    "bfloat16": ("bfloat16", "weights", False),
    "float32": ("float32", "gradients", False),
    "update": ("bfloat16", "weights after 1 step", True),
}


@dataclasses.dataclass(frozen=True)
class Input:
    """Files of one kind of input; bfloat16 is stored as uint16. ``ref`` is "" without reference."""

    file: str
    ref: str = ""


def prepare(source: str, previous: str, folder: pathlib.Path, size: int) -> dict[str, Input]:
    """Writes the inputs that ``source`` provides to ``folder``.

    Args:
      source: argument of ``files.load``: "random", "trained" (trains a small transformer, about a
        minute), a folder that ``python -m jaxccomp.bench.tensors`` made, a .npy or a .safetensors
        file.
      previous: for "update", a file with an earlier state of ``source``; "" when there is none.
      folder: the output folder.
      size: the bytes of a random update. It is not repeated, because zstd would exploit that.

    Raises:
      InvalidArgumentError: for an unknown source.
    """
    tensors = files.load(source)
    if source == "random":
        tensors.append(_random_update(size // 2))
    if previous:
        tensors += _updates(source, tensors, previous)
    made = {}
    for kind, (dtype, name, with_ref) in KINDS.items():
        fitting = [
            each
            for each in tensors
            if str(each.values.dtype) == dtype and (each.ref is not None) == with_ref
        ]
        # Prefer the tensor with the right name; accept any other.
        fitting.sort(key=lambda each: each.name != name)
        if fitting:
            made[kind] = Input(
                _save(folder / f"{kind}.npy", fitting[0].values),
                _save(folder / f"{kind}_ref.npy", fitting[0].ref) if with_ref else "",
            )
    return made


def _updates(source: str, tensors: list[files.Tensor], previous: str) -> list[files.Tensor]:
    before = {each.values.dtype: each.values for each in files.load(previous) if each.ref is None}
    pairs = [
        dataclasses.replace(each, ref=before[each.values.dtype])
        for each in tensors
        if each.values.dtype in before
    ]
    if not pairs or any(each.values.shape != each.ref.shape for each in pairs):
        raise errors.InvalidArgumentError(
            f"--previous takes an earlier state of {source!r}, with tensors of its dtypes and "
            f"sizes; {previous!r} has others."
        )
    return pairs


def _random_update(count: int) -> files.Tensor:
    """Weights before and after a step with learning rate 1e-6, which changes 1.7 % of them."""
    random = np.random.default_rng(1)
    bfloat16 = files.load("random")[0].values.dtype
    before, after = (np.empty(count, bfloat16) for _ in range(2))
    for first in range(0, count, 1 << 22):
        some = slice(first, min(first + (1 << 22), count))
        exact = random.normal(0, 0.02, some.stop - first).astype(np.float32)
        steps = 1e-6 * random.gamma(0.2, 2.1, exact.size) * random.choice((-1, 1), exact.size)
        before[some], after[some] = exact, exact + steps.astype(np.float32)
    return files.Tensor("update", after, before)


def _save(path: pathlib.Path, values: np.ndarray) -> str:
    bits = values.view(np.uint16) if str(values.dtype) == "bfloat16" else values
    np.save(path, bits)
    return str(path)

"""Loads tensors for codec benchmarks: files, random numbers, or a freshly trained model."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from jaxccomp import errors

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A named array; ``ref`` is the delta base."""

    name: str
    values: np.ndarray
    ref: np.ndarray | None = None


def load(source: str) -> list[Tensor]:
    """The tensors of ``source``, flat.

    Args:
      source: ``"random"`` (Gaussian, like weights), ``"trained"`` (trains a small transformer,
        about a minute), a ``.npy`` or ``.safetensors`` file, or a folder of ``.npy`` files as
        ``python -m jaxccomp.bench.tensors FOLDER`` writes.

    Raises:
      InvalidArgumentError: if the file is missing or of another kind.
    """
    if source == "random":
        return list(_random())
    if source == "trained":
        from jaxccomp.bench import tensors

        with tempfile.TemporaryDirectory() as folder:
            tensors.save(tensors.train(steps=300), pathlib.Path(folder))
            return _folder(pathlib.Path(folder))
    path = pathlib.Path(source)
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".npy" and path.is_file():
        return [Tensor(path.stem, _npy(path))]
    if path.suffix == ".safetensors" and path.is_file():
        return list(_safetensors(path))
    raise errors.InvalidArgumentError(
        f"tensors are random, trained, a .npy or .safetensors file, or a folder of .npy files; "
        f"{source!r} is none of these."
    )


def _random() -> Iterator[Tensor]:
    normal = np.random.default_rng(0).normal(0, 0.02, 1 << 22).astype(np.float32)
    yield Tensor("gaussian", normal.astype(_BFLOAT16))
    yield Tensor("gaussian", normal)


def _npy(path: pathlib.Path) -> np.ndarray:
    try:
        values = np.load(path, allow_pickle=False).reshape(-1)
    except (OSError, ValueError, EOFError) as error:
        raise errors.InvalidArgumentError(f"{path}: {error}.") from None
    # .npy has no bfloat16: its bits are uint16, or V2 without a name.
    bits = values.dtype == np.uint16 and path.stem.endswith("bfloat16")
    return values.view(_BFLOAT16) if bits or values.dtype == np.dtype("V2") else values


def _folder(folder: pathlib.Path) -> list[Tensor]:
    found = {path.stem: _npy(path) for path in sorted(folder.glob("*.npy"))}
    if not found:
        raise errors.InvalidArgumentError(f"{folder} has no .npy files.")
    rows = [
        Tensor(name.removesuffix(f"_{values.dtype}"), values)
        for name, values in found.items()
        if "before" not in name and "previous" not in name
    ]
    for steps, ref in ((1, "previous_weights"), (4, "weights_4_steps_before")):
        for dtype in ("bfloat16", "float32"):
            if f"weights_{dtype}" in found and f"{ref}_{dtype}" in found:
                name = f"weights after {steps} step{'s' * (steps > 1)}"
                rows.append(Tensor(name, found[f"weights_{dtype}"], found[f"{ref}_{dtype}"]))
    return rows


def _safetensors(path: pathlib.Path) -> Iterator[Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.flax import load_file
    except ImportError as error:
        raise errors.EngineUnavailableError(
            f"{path.name} needs safetensors and flax ({error}): `pip install 'jaxccomp[bench]'`."
        ) from None
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise errors.InvalidArgumentError(f"{path}: {error}.") from None
    by_dtype: dict[np.dtype, list[np.ndarray]] = {}
    for values in tensors.values():
        array = np.asarray(values).reshape(-1)
        by_dtype.setdefault(array.dtype, []).append(array)
    for arrays in by_dtype.values():
        yield Tensor(path.stem, np.concatenate(arrays))

"""What the engine's CUDA library has here, or why there is none."""

from __future__ import annotations

import functools

from jaxccomp._native import engine
from jaxccomp._native.platforms import CUDA


@functools.cache
def why_missing() -> str:
    """Why the engine cannot use GPUs in this process, and the remedy; empty when it can.

    Starts JAX's backend, and opens the GPUs.
    """
    if not engine.available():
        return engine.why_missing()
    return engine.load().cuda()["missing"] or open_gpus()


@functools.cache
def runs(codec: str, dtype: str) -> bool:
    """Whether GPUs have what it takes to send values of ``dtype`` with ``codec``."""
    return engine.load().cuda_runs(codec, dtype)


@functools.cache
def runs_on_streams(codec: str, dtype: str) -> bool:
    """Whether the traced plane may leave a codec's values of a dtype to kernels."""
    return engine.load().cuda_runs_on_streams(codec, dtype)


@functools.cache
def open_gpus() -> str:
    """Opens all GPUs that JAX has in this process, once: XLA's threads only look them up.

    Returns:
      Why one of them cannot be opened; empty when all are open.
    """
    return engine.load().open_cuda_devices(
        [(each.local_hardware_id, CUDA.number(each.id)) for each in CUDA.local_devices()]
    )

"""What the engine's CUDA library has here, or why there is none."""

from __future__ import annotations

import functools

from jaxccomp._native import engine
from jaxccomp._native.platforms import CUDA


@functools.cache
def why_missing() -> str:
    """Why the engine cannot use GPUs in this process, and the remedy; empty when it can."""
    if not engine.available():
        return engine.why_missing()
    return engine.load().cuda()["missing"]


@functools.cache
def runs(codec: str, dtype: str) -> bool:
    """Whether GPUs have what it takes to send values of ``dtype`` with ``codec``."""
    return engine.load().cuda_runs(codec, dtype)


@functools.cache
def runs_on_streams(codec: str, dtype: str) -> bool:
    """Whether the traced plane may leave a codec's values of a dtype to kernels."""
    return engine.load().cuda_runs_on_streams(codec, dtype)


def tell_engine() -> None:
    """Tells the engine which of CUDA's ordinals is which of JAX's devices."""
    devices = CUDA.local_devices()
    engine.load().set_cuda_devices(
        [(each.local_hardware_id, CUDA.number(each.id)) for each in devices]
    )

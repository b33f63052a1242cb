"""The engine's CUDA library: which codecs it has, or why it is missing."""

from __future__ import annotations

import functools

from jaxccomp._native import engine
from jaxccomp._native.platforms import CUDA


@functools.cache
def why_missing() -> str:
    """Why the engine cannot use GPUs in this process, and the remedy; empty if it can.

    Starts JAX's backend, and opens the GPUs.
    """
    if not engine.available():
        return engine.why_missing()
    return engine.load().cuda()["missing"] or open_gpus()


@functools.cache
def runs(codec: str, dtype: str) -> bool:
    """Whether GPUs can send values of ``dtype`` with ``codec``."""
    return engine.load().cuda_runs(codec, dtype)


@functools.cache
def runs_on_streams(codec: str, dtype: str) -> bool:
    """Whether the traced plane may encode values of ``dtype`` with kernels."""
    return engine.load().cuda_runs_on_streams(codec, dtype)


@functools.cache
def open_gpus() -> str:
    """Opens all of JAX's GPUs in this process, once; XLA's threads only look them up.

    Returns:
      Why one of them cannot be opened; empty if all are open.
    """
    return engine.load().open_cuda_devices(
        [(each.local_hardware_id, CUDA.number(each.id)) for each in CUDA.local_devices()]
    )

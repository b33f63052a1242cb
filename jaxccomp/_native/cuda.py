"""What the engine's CUDA library has here, or why there is none."""

from __future__ import annotations

import functools
import os
from typing import Any

from jaxccomp import config, errors
from jaxccomp._native import engine
from jaxccomp._native.platforms import CUDA

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST_CONNECTIONS = "32"


def follow_device_wait() -> None:
    """Gives CUDA as many hardware queues as it can have where streams are to wait.

    Called when the package is imported: CUDA reads their number when it starts.
    """
    config.on_change(_set_connections)


def _set_connections(option: config.Option, value: Any) -> None:
    if option.name != "device_wait" or value != "stream":
        return
    if os.environ.setdefault(_CONNECTIONS, _MOST_CONNECTIONS).strip() == "1":
        raise errors.InvalidArgumentError(
            f'device_wait="stream" does not go with {_CONNECTIONS}=1: behind a stream that waits, '
            f"all others would stand still. Leave {_CONNECTIONS} unset, which makes it "
            f"{_MOST_CONNECTIONS} where jaxccomp is imported before CUDA starts, or use "
            'device_wait="host".'
        )


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

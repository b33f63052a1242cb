"""The platforms whose devices the engine serves, and its CUDA library, if there is one."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax

from jaxccomp._native import engine


@dataclasses.dataclass(frozen=True)
class Platform:
    """A platform of the engine.

    Attributes:
      name: its name in lowerings and ``jax.devices``.
      xla: its name in the registration of handlers.
      first_number: the engine's number of the device with id 0. JAX numbers the devices of each
        platform from 0; the engine has one set of numbers.
    """

    name: str
    xla: str
    first_number: int

    def devices(self) -> list[Any]:
        """All devices of all processes; none if JAX lacks the platform."""
        try:
            return jax.devices(self.name)
        except RuntimeError:
            return []

    def local_devices(self) -> list[Any]:
        """The devices of this process."""
        return jax.local_devices(backend=self.name) if self.devices() else []

    def number(self, device_id: int) -> int:
        """The engine's number of a device, from JAX's."""
        return self.first_number + device_id


CPU = Platform("cpu", "cpu", 0)
CUDA = Platform("cuda", "CUDA", 1 << 40)

TABLE = {platform.name: platform for platform in (CPU, CUDA)}


# --- The CUDA library -----------------------------------------------------------------------------


@functools.cache
def why_no_cuda() -> str:
    """Why the engine cannot use GPUs in this process, and the remedy; empty if it can.

    Starts JAX's backend, and opens the GPUs.
    """
    if not engine.available():
        return engine.why_missing()
    return engine.load().cuda()["missing"] or open_gpus()


@functools.cache
def cuda_runs(codec: str, dtype: str) -> bool:
    """Whether GPUs can send values of ``dtype`` with ``codec``."""
    return engine.load().cuda_runs(codec, dtype)


@functools.cache
def cuda_runs_on_streams(codec: str, dtype: str) -> bool:
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

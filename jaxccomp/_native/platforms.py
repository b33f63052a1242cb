"""The platforms with handlers in the engine, and its numbers of their devices."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax


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

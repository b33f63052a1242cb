"""Waits for the end of the computations that a program has dispatched."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxccomp._native import platforms


def wait() -> None:
    """Returns when all computations of this thread on this process's devices have run.

    Also waits for computations of other threads if the program still holds their results. Ignores
    errors: a program sees them when it reads its results.
    """
    for platform in platforms.TABLE.values():
        _wait_for(platform)


def _wait_for(platform: platforms.Platform) -> None:
    with contextlib.suppress(Exception):
        devices = platform.local_devices()
        # The program may have dropped results, so queue one more computation and wait for it. XLA
        # runs a thread's computations for one device in order, and those for several devices in a
        # separate order. Even a small computation never overtakes a non-empty queue.
        for group in [[device] for device in devices] + ([devices] if len(devices) > 1 else []):
            _run_last(group)
        for array in jax.live_arrays(platform.name) if devices else ():
            with contextlib.suppress(Exception):
                array.block_until_ready()


def _run_last(devices: list[Any]) -> None:
    sharding = NamedSharding(Mesh(np.array(devices), "i"), PartitionSpec("i"))
    values = jax.device_put(np.zeros(len(devices), np.int32), sharding)
    jax.jit(lambda x: x + 1)(values).block_until_ready()

"""Waits for what a program has dispatched and not yet seen the end of."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxccomp._native import platforms


def wait() -> None:
    """Returns when all that this thread has dispatched to this process's devices has run.

    Also what other threads have dispatched, as far as the program still holds results of it.
    Whether it succeeded does not matter here: programs that want to know read their results.
    """
    for platform in platforms.TABLE.values():
        _wait_for(platform)


def _wait_for(platform: platforms.Platform) -> None:
    with contextlib.suppress(Exception):
        devices = platform.local_devices()
        # Results may have been dropped. XLA runs what a thread dispatches to a device in order,
        # and what it dispatches to several devices in an order of its own. The last one in a queue
        # that is not empty is never run ahead of it, however small it is.
        for group in [[device] for device in devices] + ([devices] if len(devices) > 1 else []):
            _run_last(group)
        for array in jax.live_arrays(platform.name) if devices else ():
            with contextlib.suppress(Exception):
                array.block_until_ready()


def _run_last(devices: list[Any]) -> None:
    sharding = NamedSharding(Mesh(np.array(devices), "i"), PartitionSpec("i"))
    values = jax.device_put(np.zeros(len(devices), np.int32), sharding)
    jax.jit(lambda x: x + 1)(values).block_until_ready()

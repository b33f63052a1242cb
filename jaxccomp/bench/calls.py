"""Times operations of this package on the world's ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxccomp.bench.team import Team

# Operations, and whether their operand has a row per rank.
NAMES = {
    "bcast": False,
    "allreduce": False,
    "allgather": False,
    "reduce_scatter": True,
    "alltoall": True,
    "gather": False,
    "scatter": True,
    "reduce": False,
}


def measure(
    team: Team, name: str, codec: str, sizes: Sequence[int], algorithm: str = "auto"
) -> list[float]:
    """For each size, the microseconds of a call: the median on the slowest rank. Collective.

    Args:
      team: all ranks.
      name: the operation, one of `NAMES`.
      codec: the codec; values are Gaussian float32.
      sizes: bytes that each rank passes in.
      algorithm: the operation's argument.
    """
    call = team.collective(name, algorithm, codec)
    normal = np.random.default_rng(team.rank).normal(0, 0.02, 1 << 20).astype(np.float32)
    found = []
    for size in sizes:
        x = _operand(normal, size, team.size if NAMES[name] else 0)
        x = jax.device_put(x, jax.local_devices(backend="cpu")[0])
        team.gather([0.0])  # a barrier
        median = _time(lambda x=x: call(x), max(10, min(1000, (256 << 20) // size)))
        found.append(float(team.gather([median]).max()))
    return found


def _operand(values: np.ndarray, size: int, rows: int) -> np.ndarray:
    """`size` bytes of the values, repeated, in `rows` rows; flat for 0 rows."""
    count = size // values.dtype.itemsize
    flat = np.resize(values, count // max(rows, 1) * max(rows, 1))
    return flat.reshape(rows, -1) if rows else flat


def _time(call: Callable[[], Any], count: int) -> float:
    """The median time of a call in microseconds."""
    for _ in range(max(3, count // 10)):
        jax.block_until_ready(call())
    times = []
    for _ in range(count):
        start = time.perf_counter_ns()
        jax.block_until_ready(call())
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000

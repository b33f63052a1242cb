"""Times operations on the world's ranks: alone, and in a model of a training step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp.bench.team import Team

# --- Operations -----------------------------------------------------------------------------------

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


# --- A model of a training step: communication and computation on the same cores ------------------
# The time of an isolated operation predicts its cost in a program poorly: in a program, ranks reach
# it at different times, and the transport shares the cores with the computation.

# A step computes for some milliseconds on a core, and exchanges 1 MiB of gradients and twice
# (forward and backward) 0.5 MiB of activations.
_FEATURES, _LAYERS, _ROWS = 256, 4, 512
_ROUNDS, _MAX_STEPS, _MIN_STEPS, _ROUND_SECONDS = 3, 20, 3, 1.0


def measure_steps(team: Team) -> float:
    """The seconds of a step on the slowest rank: the median over rounds. Collective.

    A step is a forward and a backward pass through some layers, with an alltoall of activations
    between them, and an allreduce of gradients.

    Args:
      team: all ranks.
    """
    import jaxccomp as jcc

    size = team.size

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for number, each in enumerate(weights):
            x = jnp.tanh(x @ each)
            if number == _LAYERS // 2 - 1:
                x = jcc.alltoall(x.reshape(size, -1, _FEATURES)).reshape(-1, _FEATURES)
        return jnp.mean(x**2)

    @jax.jit
    def step(weights: list[jax.Array], x: jax.Array) -> Any:
        mean = jcc.allreduce(jax.grad(loss)(weights, x), "mean")
        return [each - 0.01 * grad for each, grad in zip(weights, mean, strict=True)]

    random = np.random.default_rng(7)
    shapes = [(_FEATURES, _FEATURES)] * _LAYERS + [(-(-_ROWS // size) * size, _FEATURES)]
    *weights, x = (
        jax.device_put(
            random.standard_normal(shape, np.float32) / 16, jax.local_devices(backend="cpu")[0]
        )
        for shape in shapes
    )

    def run(steps: int) -> float:
        """Seconds per step, on the slowest rank."""
        nonlocal weights
        team.gather([0.0])  # a barrier
        start = time.perf_counter()
        for _ in range(steps):
            weights = step(weights, x)
        jax.block_until_ready(weights)
        return float(team.gather([time.perf_counter() - start]).max()) / steps

    run(1)  # compiles
    steps = round(_ROUND_SECONDS / max(run(_MIN_STEPS), 1e-9))
    steps = min(max(steps, _MIN_STEPS), _MAX_STEPS)
    return statistics.median(run(steps) for _ in range(_ROUNDS))

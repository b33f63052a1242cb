"""Measures a model of a training step: communication and computation on the same cores.

An isolated operation predicts its cost in a program poorly: there, ranks reach it at different
times, and the transport shares the cores with the computation.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp.bench.team import Team

# Some milliseconds of a core, 1 MiB of gradients, and twice 0.5 MiB of activations.
_FEATURES, _LAYERS, _ROWS = 256, 4, 512
_ROUNDS, _MOST_STEPS, _LEAST_STEPS, _ROUND_SECONDS = 3, 20, 3, 1.0


def measure(team: Team) -> float:
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
    steps = round(_ROUND_SECONDS / max(run(_LEAST_STEPS), 1e-9))
    steps = min(max(steps, _LEAST_STEPS), _MOST_STEPS)
    return statistics.median(run(steps) for _ in range(_ROUNDS))

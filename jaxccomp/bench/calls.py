"""Times operations on the world's ranks: alone, and in a model of a training step."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp.bench.team import Team

# --- Operations -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation that `measure` times.

    Attributes:
      has_rows: whether the operand has a row for each rank.
      gathers: whether the result has a row for each rank: a rank then passes in one row of the size
        given, as in nccl-tests.
      bus: of n ranks, the ratio of the bytes on a rank's link to the size (`Measured.busbw`).
    """

    has_rows: bool = False
    gathers: bool = False
    bus: Callable[[int], float] = lambda n: 1.0


def _without_own(n: int) -> float:
    return (n - 1) / n


OPERATIONS = {
    "bcast": Operation(),
    "allreduce": Operation(bus=lambda n: 2 * (n - 1) / n),
    "allgather": Operation(gathers=True, bus=_without_own),
    "reduce_scatter": Operation(has_rows=True, bus=_without_own),
    "alltoall": Operation(has_rows=True, bus=_without_own),
    "gather": Operation(gathers=True, bus=_without_own),
    "scatter": Operation(has_rows=True, bus=_without_own),
    "reduce": Operation(),
    "sendrecv": Operation(),
    "scan": Operation(),
    "exscan": Operation(),
}


@dataclasses.dataclass(frozen=True)
class Measured:
    """The times of one operation, by the conventions of nccl-tests.

    Attributes:
      size_bytes: of the larger of a rank's operand and result.
      p50_us: the median time of a call on the slowest rank, in microseconds.
      p99_us: the 99th percentile.
      wire_bytes: the encoded bytes that the busiest rank sends to other processes in a call.
      ratio: the same bytes without a codec / ``wire_bytes``; 1 if nothing is sent.
      error: the maximum error of the result, relative to its largest magnitude; 0 for exact codecs.
      bus: see `Operation`.
    """

    size_bytes: int
    p50_us: float
    p99_us: float
    wire_bytes: int
    ratio: float
    error: float
    bus: float

    @property
    def algbw(self) -> float:
        """The algorithm bandwidth: GB/s of ``size_bytes``."""
        return self.size_bytes / self.p50_us / 1e3

    @property
    def busbw(self) -> float:
        """The bus bandwidth: `algbw` times the bytes on a rank's link / ``size_bytes``.

        With a codec it counts the values that the encoded bytes stand for, so it can exceed the
        link's rate.
        """
        return self.algbw * self.bus


def measure(
    team: Team, name: str, codec: str, sizes: Sequence[int], dtype: str = "float32"
) -> list[Measured]:
    """Times an operation for each size. Collective.

    Args:
      team: all ranks.
      name: the operation, one of `OPERATIONS`.
      codec: the codec; values are Gaussian.
      sizes: bytes of the larger of a rank's operand and result.
      dtype: the values' dtype.
    """
    operation = OPERATIONS[name]
    normal = np.random.default_rng(team.rank).normal(0, 0.02, 1 << 20).astype(np.float32)
    call, raw = (team.operation(name, each) for each in (codec, "raw"))
    found = []
    for size in sizes:
        x = _operand(normal, size, operation, team.size, dtype)
        x = jax.device_put(x, jax.local_devices(backend="cpu")[0])
        raw_bytes, exact = team.sent_bytes(lambda x=x: raw(x))
        sent_bytes, result = team.sent_bytes(lambda x=x: call(x))
        error = _error(np.asarray(result, np.float32), np.asarray(exact, np.float32))
        del result, exact
        times = _time(lambda x=x: call(x), max(10, min(1000, (256 << 20) // size)))
        p50, p99 = np.percentile(times, (50, 99))
        p50, p99, sent, unencoded, error = team.gather(
            [p50, p99, sent_bytes, raw_bytes, error]
        ).max(axis=0)
        found.append(
            Measured(
                size_bytes=x.nbytes * (team.size if operation.gathers else 1),
                p50_us=float(p50),
                p99_us=float(p99),
                wire_bytes=int(sent),
                ratio=float(unencoded / sent) if sent else 1.0,
                error=float(error),
                bus=operation.bus(team.size),
            )
        )
    return found


def _operand(
    values: np.ndarray, size: int, operation: Operation, ranks: int, dtype: str
) -> np.ndarray:
    """A rank's operand, of the values repeated, so that operand or result have `size` bytes."""
    count = max(size // jnp.dtype(dtype).itemsize, 1)
    rows = ranks if operation.has_rows or operation.gathers else 1
    flat = np.resize(values, max(count // rows, 1) * (rows if operation.has_rows else 1))
    flat = flat.astype(dtype)
    return flat.reshape(rows, -1) if operation.has_rows else flat


def _error(result: np.ndarray, exact: np.ndarray) -> float:
    greatest = np.abs(exact).max(initial=0.0)
    return float(np.abs(result - exact).max(initial=0.0) / greatest) if greatest else 0.0


def _time(call: Callable[[], Any], count: int) -> list[float]:
    """The times of `count` calls in microseconds."""
    for _ in range(max(3, count // 10)):
        jax.block_until_ready(call())
    times = []
    for _ in range(count):
        start = time.perf_counter_ns()
        jax.block_until_ready(call())
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


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

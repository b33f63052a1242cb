"""Times jitted calls on all ranks, and how long they block the host's thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from mpi4py import MPI


class Timed(NamedTuple):
    """Medians over rounds: seconds of the slowest rank, and seconds of dispatch on this rank."""

    seconds: float
    held: float


ROUNDS = 5


def timed(
    function: Callable[..., Any], *operands: Any, rounds: int = ROUNDS, warmups: int = 2
) -> Timed:
    """Times a call, each round from a barrier to the end of the slowest rank."""
    for _ in range(warmups):
        jax.block_until_ready(function(*operands))
    whole, held = [], []
    for _ in range(rounds):
        MPI.COMM_WORLD.Barrier()
        start = time.perf_counter()
        results = function(*operands)
        held.append(time.perf_counter() - start)
        jax.block_until_ready(results)
        seconds = time.perf_counter() - start
        whole.append(MPI.COMM_WORLD.allreduce(seconds, op=MPI.MAX))
    return Timed(statistics.median(whole), statistics.median(held))


def products(w: jax.Array, count: int | jax.Array = 20) -> jax.Array:
    """Computation that is independent of a collective."""
    return jax.lax.fori_loop(0, count, lambda _, each: jnp.tanh(each @ w), w)


def overlap(alone: float, computed: float, both: float) -> float:
    """The fraction of the shorter one that the longer one hid."""
    return round((alone + computed - both) / min(alone, computed), 2)

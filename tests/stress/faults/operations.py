"""The four operations as functions of a communicator, and their results."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc


def communicator(operation: str, comm: Any) -> Any:
    """Returns ``comm``, ordered for messages between two ranks."""
    return comm.ordered() if operation == "send/recv" else comm


def run(operation: str, x: Any, comm: Any, root: int, codec: Any = None) -> Any:
    """Calls the operation on a rank. All results depend on the values of ``root``."""
    rank, n = comm.rank, comm.size
    if operation == "bcast":
        return jcc.bcast(x, root=root, comm=comm, codec=codec)
    if operation == "allreduce":
        return jcc.allreduce(x, comm=comm, codec=codec)
    if operation == "alltoall":
        rows = x[None] * jnp.arange(1, n + 1, dtype=x.dtype).reshape(n, *[1] * x.ndim)
        return jcc.alltoall(rows, comm=comm, codec=codec)
    if rank == root:
        others = [peer for peer in range(n) if peer != root]
        for peer in others:
            jcc.send(x, dest=peer, comm=comm, codec=codec)
        return sum(jcc.recv(x, source=peer, comm=comm, codec=codec) for peer in others)
    y = jcc.recv(x, source=root, comm=comm, codec=codec)
    jcc.send(x, dest=root, comm=comm, codec=codec)
    return y


def expected(operation: str, inputs: list[np.ndarray], rank: int, root: int) -> np.ndarray:
    """The result on ``rank`` of every rank's ``inputs``."""
    if operation == "bcast":
        return inputs[root]
    if operation == "allreduce":
        return np.sum(inputs, axis=0)
    if operation == "alltoall":
        return np.stack([x * (rank + 1) for x in inputs])
    if rank == root:
        return np.sum([x for peer, x in enumerate(inputs) if peer != root], axis=0)
    return inputs[root]


def values(rank: int, number: int, count: int) -> np.ndarray:
    """Returns whole numbers that differ by rank and launch."""
    return (np.arange(count) % 1009 + 10_000.0 * rank + 100.0 * (number % 50)).astype(np.float32)

"""Communication of test ranks independent of jaxccomp: by MPI, or by JAX's store.

With JAXCCOMP_TEST_COORDINATOR the processes belong to ``jax.distributed``, which this joins.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

_TIMEOUT_SECONDS = 300


class StoreRanks:
    """The part of a mpi4py communicator that tests use, on the store of ``jax.distributed``."""

    def __init__(self, client: Any, rank: int, size: int):
        self._client, self.rank, self.size = client, rank, size
        self._calls = 0

    def allgather(self, value: Any) -> list[Any]:
        self._calls += 1
        folder = f"tests/{self._calls}"
        self._client.key_value_set_bytes(f"{folder}/{self.rank}", pickle.dumps(value))
        return [
            pickle.loads(
                self._client.blocking_key_value_get_bytes(
                    f"{folder}/{rank}", _TIMEOUT_SECONDS * 1000
                )
            )
            for rank in range(self.size)
        ]

    def barrier(self) -> None:
        self.allgather(None)


def ranks() -> Any:
    """Returns a communicator of all ranks of this job."""
    coordinator = os.environ.get("JAXCCOMP_TEST_COORDINATOR")
    if coordinator is None:
        from mpi4py import MPI

        return MPI.COMM_WORLD.Dup()
    import jax

    from jaxccomp import _jax

    rank, size = int(os.environ["JAXCCOMP_TEST_RANK"]), int(os.environ["JAXCCOMP_TEST_RANKS"])
    jax.distributed.initialize(coordinator, size, rank)
    return StoreRanks(_jax.distributed_client(), rank, size)

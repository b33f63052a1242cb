"""Exchanges through the key-value store of ``jax.distributed``, for processes without MPI.

Processes exchange rows of integers by ``Store.share``. All waits have a deadline. Other clients may
write to the store, so all values are checked.
"""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from jaxccomp import _jax, errors
from jaxccomp._native.version import __version__

_PREFIX = "jaxccomp"


class Store:
    """The exchanges of this process through the store.

    Args:
      client: the client of ``jax.distributed`` (_jax.distributed_client).
    """

    def __init__(self, client: Any):
        self._client = client
        self._shared: dict[str, int] = {}  # number of `share` calls by name

    def share(
        self, members: Sequence[int], rank: int, name: str, row: Sequence[int], timeout: float
    ) -> np.ndarray:
        """Allgather rows of integers, in the members' order, through the first member.

        Raises:
          InitializationError: names the processes that sent no row in time, or an invalid row.
        """
        number = self._shared.get(name, 0)
        mine = np.array([zlib.crc32(f"{__version__} {name}".encode()), *row], np.int64)
        folder = f"{_PREFIX}/rows/{quote(name, safe='')}/{number}"
        deadline = time.monotonic() + timeout

        def fetch(key: str, rows: int, of: int) -> np.ndarray:
            left = max(deadline - time.monotonic(), 1e-3)
            found = _jax.stored(self._client, f"{folder}/{key}", left)
            if found is None:
                raise self._missing(folder, members, timeout)
            if len(found) != rows * mine.nbytes:
                raise errors.InitializationError(_unreadable(of))
            return np.frombuffer(found, np.int64).reshape(rows, mine.size)

        self._client.key_value_set_bytes(f"{folder}/{rank}", mine.tobytes(), True)
        if rank == 0:
            table = np.concatenate([fetch(str(r), 1, of) for r, of in enumerate(members)])
            self._client.key_value_set_bytes(f"{folder}/all", table.tobytes(), True)
        else:
            table = fetch("all", len(members), members[0])
        for member, each in zip(members, table, strict=True):
            if each[0] != mine[0]:
                raise errors.InitializationError(_unreadable(member))
        self._shared[name] = number + 1
        return table[:, 1:]

    def _missing(
        self, folder: str, members: Sequence[int], timeout: float
    ) -> errors.InitializationError:
        here = {key.rsplit("/", 1)[-1] for key, _ in self._client.key_value_dir_get_bytes(folder)}
        missing = [member for rank, member in enumerate(members) if str(rank) not in here]
        late = f"processes {missing} have not come"
        if not missing:
            late = f"process {members[0]} has not answered"
        return errors.InitializationError(
            f"all processes of jax.distributed (here {list(members)}) must take part in "
            f"jaxccomp.init() and in split(), but after {timeout:g} s {late}. Call it on every "
            "process near the start of the program (operations call it when the program has not), "
            "or raise the option init_timeout_seconds."
        )

    def stop(self) -> None:
        """Do nothing: the store has no thread."""


@functools.cache
def of(client: Any) -> Store:
    """Return the only `Store` of a client.

    It numbers the exchanges, so a second attempt to join reads no rows of a completed exchange.
    """
    return Store(client)


def _unreadable(process: int) -> str:
    return (
        f"the entry of process {process} in jax.distributed's store is not a row of jaxccomp "
        f"{__version__} for this call: all processes must have the same version, and call split() "
        "on their communicators in the same order."
    )

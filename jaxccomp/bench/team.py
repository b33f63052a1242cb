"""The ranks that measure a profile together: what they run, and what they tell each other."""

from __future__ import annotations

import functools
import inspect
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

_ROUNDS = 7
# Before those that count come so many calls, or seconds: until a process has been through all the
# memory that it uses again, results lie in new pages, which cost several times what a message does.
_WARMUPS, _WARM_SECONDS = 8, 0.1
# Of calls that are compared: after so many turns of all, those that are near the fastest go on, for
# so many turns in all, and short ones for so many seconds.
_TURNS_OF_ALL, _NEAR = 2, 1.5
_TURNS, _MOST_TURNS, _SECONDS = 3, 200, 0.5
PING_PONGS = 10  # in one jitted call, so that what dispatch costs is shared by many


class Team:
    """The world's ranks, as the measurements use them."""

    def __init__(self) -> None:
        """Joins them."""
        import jaxccomp as jcc

        self._jcc = jcc
        self.world = jcc.init()
        self.rank, self.size = self.world.rank, self.world.size
        self._own = self.world.split(self.rank)

    def hosts(self) -> list[list[int]]:
        """Ranks by host, in the order of the hosts' first ranks."""
        found: dict[int, list[int]] = {}
        for rank, host in enumerate(self.host_of_ranks()):
            found.setdefault(host, []).append(rank)
        return list(found.values())

    def host_of_ranks(self) -> tuple[int, ...]:
        """By rank, a number for its host."""
        return tuple(self._jcc.comm.hosts())

    def gather(self, values: Sequence[float]) -> np.ndarray:
        """All ranks' rows."""
        row = np.asarray(values, np.float64)
        rows = self._jcc.allgather(_on_host(row.view(np.uint32)))
        return np.asarray(rows).view(np.float64)

    def from_first(self, data: bytes) -> bytes:
        """The first rank's bytes."""
        size = int(self.gather([len(data)])[0, 0])
        mine = np.frombuffer(data, np.uint8) if self.rank == 0 else np.zeros(size, np.uint8)
        return np.asarray(self._jcc.bcast(_on_host(mine), root=0)).tobytes()

    def time(self, call: Callable[[Any], Any], x: Any) -> float:
        """The median of what a call takes here, all ranks beginning together."""

        def seconds() -> float:
            self.gather([0.0])
            start = time.perf_counter()
            jax.block_until_ready(call(x))
            return time.perf_counter() - start

        jax.block_until_ready(call(x))  # compiled
        slowest = float(self.gather([seconds()]).max())
        for _ in range(min(_WARMUPS, int(_WARM_SECONDS / slowest))):
            jax.block_until_ready(call(x))
        return statistics.median(seconds() for _ in range(_ROUNDS))

    def time_in_turns(
        self, calls: Sequence[Callable[[Any], Any]], x: Any, before_bytes: int = 0
    ) -> list[float]:
        """Of each the median of what a call takes on the slowest rank; the same on all ranks.

        Args:
          calls: what is compared.
          x: their operand.
          before_bytes: what each rank sends the next one right before a call, so that links are as
            busy ones are. After a pause some let bytes through faster than they do for long.
        """
        x, before = _on_host(x), values(before_bytes)
        to_next = self.transfers({rank: (rank + 1) % self.size for rank in range(self.size)})
        together = jax.jit(self._jcc.allreduce)  # as close to the call as can be
        token = jax.block_until_ready(together(_on_host(np.zeros(1, np.float32))))
        for call in calls:
            for _ in range(2):  # memory that is touched first costs several times as much
                jax.block_until_ready(call(x))
        took: list[list[float]] = [[] for _ in calls]
        going = list(range(len(calls)))
        begun = time.monotonic()
        for turn in range(_MOST_TURNS):
            if turn == _TURNS_OF_ALL:
                least = min(map(min, took))
                going = [i for i in going if min(took[i]) <= _NEAR * least]
            late = turn >= _TURNS and time.monotonic() - begun > _SECONDS
            if self.gather([late]).any():
                break
            seconds = []
            # The first call after something else takes longer: each turn begins with another one.
            going = [*going[1:], going[0]]
            for i in going:
                jax.block_until_ready(together(token))
                if before_bytes:
                    jax.block_until_ready(to_next(before))
                start = time.perf_counter()
                jax.block_until_ready(calls[i](x))
                seconds.append(time.perf_counter() - start)
            for i, slowest in zip(going, self.gather(seconds).max(axis=0), strict=True):
                took[i].append(float(slowest))
        return list(map(statistics.median_low, took))

    def collective(self, name: str, algorithm: str, codec: str) -> Callable[[Any], Any]:
        """A jitted collective of all ranks; rank 0 is the root."""
        call = getattr(self._jcc, name)
        rooted = {"root": 0} if "root" in inspect.signature(call).parameters else {}
        return jax.jit(functools.partial(call, algorithm=algorithm, codec=codec, **rooted))

    def transfers(self, to: Mapping[int, int]) -> Callable[[Any], Any]:
        """A jitted function that sends from some ranks to others."""
        return jax.jit(lambda x: self._transfer(x, to))

    def ping_pongs(self, a: int, b: int) -> Callable[[Any], Any]:
        """A jitted function that sends to and fro."""

        def call(x: Any) -> Any:
            for _ in range(PING_PONGS):
                x = self._transfer(self._transfer(x, {a: b}), {b: a})
            return x

        return jax.jit(call)

    def alone(self) -> Callable[[Any], Any]:
        """A jitted collective in which nobody else takes part."""
        return jax.jit(lambda x: self._jcc.allreduce(x, comm=self._own))

    def _transfer(self, x: Any, to: Mapping[int, int]) -> Any:
        back = {b: a for a, b in to.items()}
        return self._jcc.sendrecv(x, dest=to.get(self.rank), source=back.get(self.rank))


def values(size_bytes: int) -> Any:
    """Ones, of so many bytes."""
    return _on_host(np.ones(max(size_bytes // 4, 1), np.float32))


def _on_host(array: np.ndarray) -> jax.Array:
    """In the host's memory, also where JAX's default device is a GPU."""
    return jax.device_put(array, jax.local_devices(backend="cpu")[0])

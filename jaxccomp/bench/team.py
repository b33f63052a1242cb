"""The ranks that measure together: their operations, timing, and checkpoints of their results."""

from __future__ import annotations

import functools
import inspect
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxccomp import errors
from jaxccomp._native import json_files

if TYPE_CHECKING:
    import jaxccomp

_ROUNDS = 7
# The limits of a warm-up: calls and seconds. Until a process has touched all the memory that it
# reuses, results lie in new pages. Their page faults cost several times the time of a message.
_WARMUPS, _WARM_SECONDS = 8, 0.1
PING_PONGS = 10  # per jitted call, to amortise the dispatch


class Team:
    """The world's ranks."""

    def __init__(self) -> None:
        """Joins the world. Collective."""
        import jaxccomp as jcc

        self._jcc = jcc
        self.world: jaxccomp.Communicator = jcc.init()
        self.rank: int = self.world.rank
        self.size: int = self.world.size
        self._own = self.world.split(self.rank)

    def hosts(self) -> list[list[int]]:
        """Ranks by host, in the order of the hosts' first ranks."""
        found: dict[int, list[int]] = {}
        for rank, host in enumerate(self._jcc.comm.hosts()):
            found.setdefault(host, []).append(rank)
        return list(found.values())

    def gather(self, values: Sequence[float]) -> np.ndarray:
        """The rows of all ranks (an allgather)."""
        row = np.asarray(values, np.float64)
        # As uint32, since JAX rounds float64 to float32 by default.
        rows = self._jcc.allgather(_on_host(row.view(np.uint32)))
        return np.asarray(rows).view(np.float64)

    def from_first(self, data: bytes) -> bytes:
        """Broadcasts rank 0's bytes."""
        size = int(self.gather([len(data)])[0, 0])
        mine = np.frombuffer(data, np.uint8) if self.rank == 0 else np.zeros(size, np.uint8)
        return np.asarray(self._jcc.bcast(_on_host(mine), root=0)).tobytes()

    def time(self, call: Callable[[Any], Any], x: Any) -> float:
        """The median seconds of a call on this rank, with a barrier before each call."""

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

    def collective(self, name: str, algorithm: str, codec: str) -> Callable[[Any], Any]:
        """A jitted collective of all ranks; rank 0 is the root."""
        call = getattr(self._jcc, name)
        rooted = {"root": 0} if "root" in inspect.signature(call).parameters else {}
        return jax.jit(functools.partial(call, algorithm=algorithm, codec=codec, **rooted))

    def operation(self, name: str, codec: str) -> Callable[[Any], Any]:
        """A jitted collective, or a sendrecv along a ring of all ranks."""
        if name != "sendrecv":
            return self.collective(name, "auto", codec)
        dest, source = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        return jax.jit(lambda x: self._jcc.sendrecv(x, dest=dest, source=source, codec=codec))

    def sent_bytes(self, call: Callable[[], Any]) -> tuple[int, Any]:
        """The bytes that a call sends to other processes, and its result."""
        self.gather([0.0])  # a barrier
        before = self._jcc.stats.get().total.remote_bytes
        result = jax.block_until_ready(call())
        return self._jcc.stats.get().total.remote_bytes - before, result

    def transfers(self, to: Mapping[int, int]) -> Callable[[Any], Any]:
        """A jitted function that sends from the keys of `to` to its values."""
        return jax.jit(lambda x: self._transfer(x, to))

    def ping_pongs(self, a: int, b: int) -> Callable[[Any], Any]:
        """A jitted function with `PING_PONGS` round trips."""

        def call(x: Any) -> Any:
            for _ in range(PING_PONGS):
                x = self._transfer(self._transfer(x, {a: b}), {b: a})
            return x

        return jax.jit(call)

    def alone(self) -> Callable[[Any], Any]:
        """A jitted collective of this rank alone."""
        return jax.jit(lambda x: self._jcc.allreduce(x, comm=self._own))

    def _transfer(self, x: Any, to: Mapping[int, int]) -> Any:
        back = {b: a for a, b in to.items()}
        return self._jcc.sendrecv(x, dest=to.get(self.rank), source=back.get(self.rank))


def values(size_bytes: int) -> Any:
    """An array of ones, of this size."""
    return _on_host(np.ones(max(size_bytes // 4, 1), np.float32))


def _on_host(array: np.ndarray) -> jax.Array:
    """Places an array in host memory, even if JAX's default device is a GPU."""
    return jax.device_put(array, jax.local_devices(backend="cpu")[0])


# --- Checkpoints, to resume an interrupted measurement --------------------------------------------
# Rank 0 stores the results, and broadcasts stored ones at the start, so that all ranks measure the
# same steps.

CHECKPOINT_VERSION = 1
# The largest checkpoint; a case has a few hundred bytes.
MAX_CHECKPOINT_BYTES = 1 << 20


class Progress:
    """The results of steps by name.

    Args:
      team: the ranks.
      setup: everything that results depend on; a checkpoint of another setup is not resumed.
      kept: rank 0's checkpoint of an unfinished measurement; empty for none, and on other ranks.
      keep: called by rank 0 with a new checkpoint after each step; None: no checkpoints.
      tell: called with progress messages.
    """

    def __init__(
        self,
        team: Team,
        setup: Mapping[str, Any],
        kept: bytes = b"",
        keep: Callable[[bytes], None] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ):
        self._first = team.rank == 0
        self._setup = json.loads(json.dumps(setup))  # with JSON's types, for the comparison
        self._keep, self._tell = keep, tell
        steps, why = self._read(kept) if self._first else ({}, "")
        if why:
            tell(f"earlier measurements cannot be continued: {why}")
        self._steps: dict[str, Any] = json.loads(team.from_first(json.dumps(steps).encode()))

    def has(self, name: str) -> bool:
        """Whether the checkpoint has valid results of a step."""
        known = self._steps.get(name)
        return isinstance(known, list) and all(
            isinstance(each, float) and 0 < each < math.inf for each in known
        )

    def step(self, name: str, count: int, measure: Callable[[], Iterable[float]]) -> list[float]:
        """A step's results, from the checkpoint or measured now.

        Args:
          name: the step's name.
          count: the number of results, all positive.
          measure: returns the results, the same on all ranks.
        """
        known = self._steps.get(name)
        if known is not None and self.has(name) and len(known) == count:
            self._tell(f"{name}: measured before")
            return known
        self._tell(name)
        found = [float(each) for each in measure()]
        self._steps[name] = found
        if self._first and self._keep is not None:
            content = {"unfinished": CHECKPOINT_VERSION, "setup": self._setup, "steps": self._steps}
            self._keep(json.dumps(content, indent=1).encode() + b"\n")
        return found

    def _read(self, kept: bytes) -> tuple[dict[str, Any], str]:
        """The steps of a checkpoint, or why it cannot be resumed."""
        if not kept:
            return {}, ""
        try:
            content = json_files.loads(kept, "it") if len(kept) <= MAX_CHECKPOINT_BYTES else None
        except errors.InvalidArgumentError:
            content = None
        if (
            not isinstance(content, dict)
            or content.get("unfinished") != CHECKPOINT_VERSION
            or not isinstance(content.get("steps"), dict)
        ):
            return {}, "the file is damaged, or of another release"
        if content.get("setup") != self._setup:
            return {}, "it was measured on other ranks, hosts or tensors, or by another release"
        return content["steps"], ""

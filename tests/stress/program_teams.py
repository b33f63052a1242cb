"""The participants in a random program's collectives: processes, or devices of one process.

Values are lists with one entry for each position: a rank of the world, or a device of a mesh. A
team divides the positions into groups that communicate internally.
"""

from __future__ import annotations

import copy
import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from contract import AxisPlace, ProcessPlace
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc

Groups = list[list[int]]
# Communicators with their own teams; threads that must not share one use one each.
PARENTS = 3


def halves(n: int, kind: str) -> Groups:
    """Divides n positions: "all", "turned" (rotated by one), "low half" or "every second"."""
    ranks = list(range(n))
    if kind == "all":
        return [ranks]
    if kind == "turned":
        return [ranks[1:] + ranks[:1]]
    groups = (
        [ranks[: (n + 1) // 2], ranks[(n + 1) // 2 :]]
        if kind == "low half"
        else [ranks[::2], ranks[1::2]]
    )
    return [group for group in groups if group]


def _job() -> int:
    """Returns a number for this job, equal on all ranks."""
    return int(jcc.bcast(np.int32(os.getpid())))


class Processes:
    """One process per rank. Communicators are created once, except for a program's own."""

    style = "process"

    def __init__(self) -> None:
        self.world = jcc.init()
        self.n, self.rank = self.world.size, self.world.rank
        self.seen = [self.rank]
        parents = [self.world, self.world.duplicate("first"), self.world.duplicate("second")]
        self._comms = {}
        for number, parent in enumerate(parents):
            for kind in ("all", "turned", "low half", "every second"):
                groups = halves(self.n, kind)
                color = next(i for i, group in enumerate(groups) if self.rank in group)
                key = groups[color].index(self.rank)
                comm = parent if kind == "all" else parent.split(color, key)
                assert [comm.processes[i] for i in range(comm.size)] == groups[color]
                self._comms[number, kind] = comm
        self.cache_folder = os.path.join(tempfile.gettempdir(), f"jaxccomp-programs-{_job()}")

    def comm(self, parent: int | str, kind: str) -> Any:
        """Returns a communicator. A string ``parent`` names a new duplicate of the world."""
        if isinstance(parent, str):
            return self.world.duplicate(parent)
        return self._comms[parent, kind]

    def free(self, parent: str) -> None:
        self.world.duplicate(parent).free()

    def groups(self, place: str, kind: str) -> Groups:
        return halves(self.n, kind)

    def caller(self, place: str, parent: int | str, kind: str) -> Any:
        """Returns the place for calls of the contract's rows."""
        return ProcessPlace(self.comm(parent, kind))

    def compiled(self, place: str, program: Callable[..., Any], donate: bool) -> Any:
        return jax.jit(program, donate_argnums=(0,) if donate else ())

    def eager(self, place: str, program: Callable[..., Any]) -> Any:
        return program

    def flag(self) -> Any:
        return jnp.asarray(True)

    def spread(self, place: str, values: list[Any], donate: bool) -> Any:
        """Returns this rank's value; if donated, in memory of JAX."""
        return jnp.array(values[self.rank]) if donate else jnp.asarray(values[self.rank])

    def unboxed(self, x: Any, scalar: bool) -> Any:
        return x

    def boxed(self, y: Any) -> Any:
        return y

    def rows(self, place: str, y: Any) -> list[np.ndarray]:
        """Returns the result of each position in ``seen``."""
        return [np.asarray(y)]

    def agree(self, true: bool) -> bool:
        """Returns the value of rank 0."""
        return bool(jcc.bcast(np.asarray(true)))

    def add_up(self, summary: Any) -> None:
        """Sums the counts of all ranks."""
        counts = np.array([summary.values, summary.wrong], np.int64)
        summary.values, summary.wrong = np.asarray(jcc.allreduce(counts)).tolist()

    def __repr__(self) -> str:
        return f"{self.n} processes" + " with a profile" * bool(jcc.config.get("profile"))


class Devices:
    """Devices of this process along an axis; a place is "COUNT-MODE-ORDER"."""

    style = "axis"
    rank = 0

    def __init__(self, n: int) -> None:
        self.n = n
        self.seen = list(range(n))
        self.cache_folder = os.path.join(tempfile.gettempdir(), f"jaxccomp-programs-{os.getpid()}")

    @functools.cache  # noqa: B019 - there is only one instance
    def _place(self, place: str) -> AxisPlace:
        count, mode, order = place.split("-")
        made = AxisPlace(int(count), mode)
        if order == "turned":
            devices = jax.devices()[: made.n][::-1]
            made.mesh = Mesh(np.array(devices), made.mesh.axis_names)
        return made

    def groups(self, place: str, kind: str) -> Groups:
        return halves(self._place(place).n, kind)

    def caller(self, place: str, parent: int | str, kind: str) -> Any:
        own = copy.copy(self._place(place))
        groups = self.groups(place, kind)
        if kind != "all":
            own.n, own.how = len(groups[0]), own.how | {"axis_index_groups": groups}
        return own

    def compiled(self, place: str, program: Callable[..., Any], donate: bool) -> Any:
        own, donated = self._place(place), (0,) if donate else ()
        if own.mode != "pmap":
            return jax.jit(own.mapped(program), donate_argnums=donated)
        axis, devices = own.mesh.axis_names[0], list(own.mesh.devices.flat)
        return jax.pmap(program, axis, in_axes=(0, None), devices=devices, donate_argnums=donated)

    def eager(self, place: str, program: Callable[..., Any]) -> Any:
        return self._place(place).mapped(program)

    def flag(self) -> Any:
        return jnp.asarray(True)

    def spread(self, place: str, values: list[Any], donate: bool) -> Any:
        own, x = self._place(place), np.stack(values)
        if own.mode == "pmap":
            return jnp.array(x) if donate else x
        if x.ndim > 1:
            x = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
        sharding = NamedSharding(own.mesh, P(own.mesh.axis_names[0]))
        return jax.device_put(jnp.array(x) if donate else x, sharding)

    def unboxed(self, x: Any, scalar: bool) -> Any:
        """Returns a scalar from an array of one: devices along a mesh axis have those."""
        return jnp.reshape(x, ()) if scalar else x

    def boxed(self, y: Any) -> Any:
        return jnp.reshape(y, (1,)) if jnp.ndim(y) == 0 else y

    def rows(self, place: str, y: Any) -> list[np.ndarray]:
        own, y = self._place(place), np.asarray(y)
        if own.mode == "pmap":
            return list(y)
        return list(y.reshape(own.n, y.shape[0] // own.n, *y.shape[1:]))

    def agree(self, true: bool) -> bool:
        return true

    def add_up(self, summary: Any) -> None:
        """There is only one process."""

    def __repr__(self) -> str:
        return f"{self.n} devices"

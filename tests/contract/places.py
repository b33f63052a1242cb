"""The ranks of a test: devices along an axis of one process, or one process per rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

BACKEND = os.environ.get("JAXCCOMP_TEST_BACKEND", "auto")
AXIS = "ranks"
ON_AXIS = P(AXIS)

Array = Any
# The program of a rank: a function of its inputs and a flag that is equal on all ranks.
Program = Callable[[Any, Array], Any]


class Place:
    """n ranks.

    Attributes:
      n: their number.
      rank: the calling rank, if programs differ by rank; None along an axis.
      how: keyword arguments of every operation here.
      seen: the ranks whose results this process has.
    """

    n: int
    rank: int | None
    how: dict[str, Any]
    seen: slice
    style: str

    def run(self, program: Program, inputs: Any, *, jit: bool = True, donate: bool = False) -> Any:
        """Runs ``program`` once on every rank.

        Args:
          program: the program of each rank.
          inputs: tree of arrays whose row i along axis 0 is rank i's.
          jit: whether it is compiled as a whole.
          donate: whether it may overwrite its inputs.

        Returns:
          The stacked results of the ranks in ``seen``, as NumPy arrays.
        """
        function = self.compiled(program, donate=donate) if jit else self.eager(program)
        return jax.tree.map(self.stacked, function(self.spread(inputs, donate=donate)))

    def compiled(self, program: Program, *, donate: bool = False) -> Callable[[Any], Any]:
        """Returns ``program`` as a compiled function of inputs from `spread`."""
        raise NotImplementedError

    def eager(self, program: Program) -> Callable[[Any], Any]:
        """Returns ``program`` as a function that runs operation by operation."""
        raise NotImplementedError

    def spread(self, inputs: Any, *, donate: bool = False) -> Any:
        """Distributes the inputs to the ranks; to be donated, in memory of JAX."""
        raise NotImplementedError

    def stacked(self, y: Array) -> np.ndarray:
        """Returns a result as rows of the ranks in ``seen``."""
        raise NotImplementedError

    def own_rows(self, x: Array, counts: Sequence[int]) -> Array:
        """Returns the valid rows of a v-variant's operand: exact shapes between processes."""
        return x if self.rank is None else x[: int(counts[self.rank])]

    def filled(self, y: Array, length: int) -> Array:
        """Returns the result of a v-variant padded with zero rows to ``length``."""
        return jnp.pad(y, [(0, length - y.shape[0])] + [(0, 0)] * (y.ndim - 1))


class AxisPlace(Place):
    """The first n devices of this process, along an axis of shard_map or pmap."""

    style = "axis"

    def __init__(self, n: int, mode: str):
        """`mode` is "check_vma", "no_check_vma" or "pmap"."""
        self.n, self.mode, self.rank = n, mode, None
        self.how = {"axis_name": AXIS, "backend": BACKEND}
        self.seen = slice(None)
        self.mesh = Mesh(np.array(jax.devices()[:n]), (AXIS,))

    def compiled(self, program: Program, *, donate: bool = False) -> Callable[[Any], Any]:
        donated = (0,) if donate else ()
        if self.mode == "pmap":
            devices = list(self.mesh.devices.flat)
            function = jax.pmap(
                program, AXIS, in_axes=(0, None), devices=devices, donate_argnums=donated
            )
        else:
            function = jax.jit(self.mapped(program), donate_argnums=donated)
        return lambda inputs: function(inputs, jnp.asarray(True))

    def eager(self, program: Program) -> Callable[[Any], Any]:
        return lambda inputs: self.mapped(program)(inputs, jnp.asarray(True))

    def mapped(self, program: Program, out_specs: Any = ON_AXIS) -> Callable[..., Any]:
        """Returns ``program`` under shard_map, for inputs from `spread`."""
        return jax.shard_map(
            program,
            mesh=self.mesh,
            in_specs=(P(AXIS), P()),
            out_specs=out_specs,
            check_vma=self.mode == "check_vma",
        )

    def spread(self, inputs: Any, *, donate: bool = False) -> Any:
        """For shard_map, concatenates the ranks' arrays along axis 0.

        So a rank's program needs no operation to select its own values, which would also be
        compiled.
        """
        if self.mode == "pmap":
            return jax.tree.map(jnp.array, inputs) if donate else inputs
        sharding = NamedSharding(self.mesh, P(AXIS))

        def place(x: np.ndarray) -> Array:
            x = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
            return jax.device_put(jnp.array(x) if donate else x, sharding)

        return jax.tree.map(place, inputs)

    def stacked(self, y: Array) -> np.ndarray:
        if self.mode == "pmap":
            return np.asarray(y)
        return np.asarray(y).reshape(self.n, y.shape[0] // self.n, *y.shape[1:])

    def __repr__(self) -> str:
        return f"{self.n}-{self.mode}"


class ProcessPlace(Place):
    """One process per rank; this is one of them."""

    style = "process"

    def __init__(self, comm: Any):
        self.n, self.rank = comm.size, comm.rank
        self.how = {"comm": comm}
        self.seen = slice(self.rank, self.rank + 1)

    def compiled(self, program: Program, *, donate: bool = False) -> Callable[[Any], Any]:
        function = jax.jit(program, donate_argnums=(0,) if donate else ())
        return lambda inputs: function(inputs, jnp.asarray(True))

    def eager(self, program: Program) -> Callable[[Any], Any]:
        return lambda inputs: program(inputs, jnp.asarray(True))

    def spread(self, inputs: Any, *, donate: bool = False) -> Any:
        take = jnp.array if donate else jnp.asarray
        return jax.tree.map(lambda x: take(x[self.rank]), inputs)

    def stacked(self, y: Array) -> np.ndarray:
        return np.asarray(y)[None]

    def __repr__(self) -> str:
        return f"{self.n}-processes"

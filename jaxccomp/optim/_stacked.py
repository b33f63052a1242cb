"""Optimiser states with one row of residuals per rank: arrays of a mesh, and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxccomp import comm as _comm
from jaxccomp import errors
from jaxccomp.comm import Communicator
from jaxccomp.ops import gather
from jaxccomp.optim._states import PER_RANK

if TYPE_CHECKING:
    import optax


def state_specs(optimizer: optax.GradientTransformation, params: Any, axis_name: Any) -> Any:
    """Return the partition specs of an optimiser's state that `stack_residuals` has stacked.

    A Python loop over a jitted ``shard_map`` holds the state as arrays of the whole mesh. Parts
    that are the same on all devices are replicated, ``P()``. Residuals of error feedback differ
    between devices: they are rows of one array, ``P(axis_name)``.

    Args:
      optimizer: a transformation, with or without `allreduce_gradients` in it.
      params: a pytree of the parameters, or of their shapes (``jax.ShapeDtypeStruct``).
      axis_name: the axis, or the tuple of axes, of `allreduce_gradients`.

    Returns:
      A pytree like the state, for ``in_specs`` and ``out_specs``.

    Example:
      >>> specs = jaxccomp.optim.state_specs(optimizer, params, "data")  # doctest: +SKIP
      >>> @jax.jit                                                       # doctest: +SKIP
      ... @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), specs, P("data")),
      ...                    out_specs=(P(), specs))
      ... def step(params, state, batch):
      ...     state = jaxccomp.optim.unstack_residuals(state)
      ...     own = jax.lax.pcast(params, "data", to="varying")
      ...     updates, state = optimizer.update(jax.grad(loss)(own, batch), state, params)
      ...     params = optax.apply_updates(params, updates)
      ...     return params, jaxccomp.optim.stack_residuals(state)
    """
    state = jax.eval_shape(optimizer.init, params)
    axes = PartitionSpec(axis_name)
    return _map(lambda _: axes, lambda _: PartitionSpec(), state)


def stack_residuals(state: Any) -> Any:
    """Return the state with residuals as rows, to return from a function under ``shard_map``.

    Args:
      state: an optimiser's state: the result of its ``init`` or ``update`` on this device.

    Returns:
      The state; residuals have a leading axis of length 1, along which the specs of `state_specs`
      join the residuals of all devices.
    """
    return _map(lambda x: x[None], lambda x: x, state)


def unstack_residuals(state: Any) -> Any:
    """Undo `stack_residuals`, on an argument of a function under ``shard_map``."""
    return _map(lambda x: x[0], lambda x: x, state)


def resize_residuals(state: Any, ranks: int, op: str = "mean") -> Any:
    """Distribute the residuals of a stacked state over another number of ranks, without loss.

    With fewer ranks, rank r gets the sum of the rows r, r + ranks, and so on. With more, the first
    ranks keep their rows and the others begin with zeros. For "mean", which divides by the number
    of ranks, rows are scaled to keep their mean.

    Args:
      state: an optimiser's state, stacked by `stack_residuals` under ``shard_map``, or restored
        from a checkpoint of such a state: residuals have a row for each rank.
      ranks: the new number of rows.
      op: the ``op`` of `allreduce_gradients`: "mean" or "sum".

    Returns:
      The state with residuals of ``ranks`` rows; the rest is unchanged.

    Raises:
      UnknownNameError: for another ``op``.
      InvalidArgumentError: for ``ranks`` below 1.

    Example:
      >>> state = checkpointer.restore(path, target)                     # doctest: +SKIP
      >>> state = jaxccomp.optim.resize_residuals(state, jax.device_count())  # doctest: +SKIP
    """
    return _resized("resize_residuals", state, ranks, op)


def _resized(name: str, state: Any, ranks: int, op: str) -> Any:
    if op not in ("mean", "sum"):
        raise errors.unknown(f"op of {name}:", op, ("mean", "sum"))
    _check_ranks(name, ranks)

    def resize(rows: Any) -> Any:
        before = rows.shape[0]
        filled = jnp.zeros((-(-before // ranks) * ranks, *rows.shape[1:]), rows.dtype)
        filled = filled.at[:before].set(rows)
        sums = filled.reshape(-1, ranks, *rows.shape[1:]).sum(axis=0)
        return (sums * (ranks / before)).astype(rows.dtype) if op == "mean" else sums

    return _map(resize, lambda x: x, state)


def gather_state(state: Any, *, root: int = 0, comm: Communicator | None = None) -> Any:
    """Return the state with the residuals of all processes as rows, for a checkpoint. Collective.

    Residuals of error feedback differ between ranks; the rest of the state is the same on all. A
    state under ``shard_map`` has such rows by `stack_residuals`, and needs no gathering.

    On the wire: one `jaxccomp.gather` of all residuals, without a codec; nothing if there are none.

    Args:
      state: this rank's optimiser state.
      root: the rank that gets the rows.
      comm: the communicator of `allreduce_gradients`; default: the world.

    Returns:
      The state. On the root, residuals have a leading axis with one row per rank; on other ranks
      these rows are zeros.

    Example:
      >>> whole = jaxccomp.optim.gather_state(state)                     # doctest: +SKIP
      >>> if jaxccomp.world().rank == 0:                                 # doctest: +SKIP
      ...     checkpointer.save(path, {"params": params, "state": whole})
    """
    residuals: list[Any] = []
    _map(residuals.append, lambda x: x, state)
    rows = iter(gather(residuals, root=root, comm=comm) if residuals else [])
    return _map(lambda _: next(rows), lambda x: x, state)


def state_shapes(
    optimizer: optax.GradientTransformation, params: Any, ranks: int, *, mesh: Mesh | None = None
) -> Any:
    """Return shapes, dtypes and shardings of a checkpoint's state, to restore it.

    Args:
      optimizer: the transformation whose state was saved.
      params: a pytree of the parameters, or of their shapes.
      ranks: the number of ranks that saved the state: the number of rows of its residuals.
      mesh: where to restore it: replicated over this mesh. Default: on the first local device.

    Returns:
      A pytree of ``jax.ShapeDtypeStruct`` like the stacked state. `place_state` gives each rank its
      part of the restored arrays.

    Raises:
      InvalidArgumentError: for ``ranks`` below 1.

    Example:
      >>> like = jaxccomp.optim.state_shapes(optimizer, params, ranks=4)  # doctest: +SKIP
      >>> state = checkpointer.restore(path, like)                       # doctest: +SKIP
    """
    _check_ranks("state_shapes", ranks)
    where = (
        NamedSharding(mesh, PartitionSpec())
        if mesh is not None
        else SingleDeviceSharding(jax.local_devices()[0])
    )

    def shape(leaf: Any, *rows: int) -> Any:
        return jax.ShapeDtypeStruct((*rows, *leaf.shape), leaf.dtype, sharding=where)

    state = jax.eval_shape(optimizer.init, params)
    return _map(lambda x: shape(x, ranks), shape, state)


def place_state(
    state: Any,
    *,
    axis_name: Any = None,
    mesh: Mesh | None = None,
    comm: Communicator | None = None,
    op: str = "mean",
) -> Any:
    """Return each rank's part of a restored state, for any number of ranks.

    The number of ranks may differ from the number that saved the state: `resize_residuals` then
    distributes the rows, so that delayed values still arrive. It sends nothing.

    Args:
      state: a state with a row of residuals per rank, the same on all ranks: the result of
        `gather_state`, or of `stack_residuals` under ``shard_map``, read from a checkpoint.
      axis_name: the axis, or the tuple of axes, of `allreduce_gradients`, with ``mesh``.
      mesh: the mesh that has this axis. Default: ranks are processes.
      comm: without ``mesh``, the communicator of `allreduce_gradients`; default: the world.
      op: the ``op`` of `allreduce_gradients`: "mean" or "sum".

    Returns:
      With ``mesh`` the stacked state as arrays of the mesh, sharded as `state_specs` says. Without
      it, this process's state, for ``update``.

    Raises:
      UnknownNameError: for another ``op``.
      InvalidArgumentError: if only one of ``axis_name`` and ``mesh`` is given.

    Example:
      >>> state = jaxccomp.optim.place_state(found["state"])             # doctest: +SKIP
    """
    if (axis_name is None) != (mesh is None):
        raise errors.InvalidArgumentError(
            "place_state: axis_name= and mesh= go together; without both, ranks are processes."
        )
    if mesh is None:
        comm = _comm.resolve(comm, only_meets=True)
        rank = comm.rank
        return _map(lambda x: x[rank], lambda x: x, _resized("place_state", state, comm.size, op))
    names = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
    ranks = math.prod(mesh.shape[name] for name in names)
    state = _resized("place_state", state, ranks, op)
    rows = NamedSharding(mesh, PartitionSpec(tuple(names)))
    everywhere = NamedSharding(mesh, PartitionSpec())
    return _map(lambda x: jax.device_put(x, rows), lambda x: jax.device_put(x, everywhere), state)


def _check_ranks(name: str, ranks: int) -> None:
    if ranks < 1:
        raise errors.InvalidArgumentError(f"{name}: ranks must be at least 1, not {ranks}.")


def _map(of_residual: Callable[[Any], Any], of_other: Callable[[Any], Any], state: Any) -> Any:
    def mapped(part: Any) -> Any:
        if type(part) not in PER_RANK:
            return of_other(part)
        own = PER_RANK[type(part)]
        return type(part)(
            *(
                jax.tree.map(of_residual if name in own else of_other, value)
                for name, value in zip(part._fields, part, strict=True)
            )
        )

    return jax.tree.map(mapped, state, is_leaf=lambda part: type(part) in PER_RANK)

"""Optimiser states as arrays of a mesh, with one row of residuals per device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxccomp import errors
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
    if op not in ("mean", "sum"):
        raise errors.unknown("op of resize_residuals:", op, ("mean", "sum"))
    if ranks < 1:
        raise errors.InvalidArgumentError(
            f"resize_residuals: ranks must be at least 1, not {ranks}."
        )

    def resize(rows: Any) -> Any:
        before = rows.shape[0]
        filled = jnp.zeros((-(-before // ranks) * ranks, *rows.shape[1:]), rows.dtype)
        filled = filled.at[:before].set(rows)
        sums = filled.reshape(-1, ranks, *rows.shape[1:]).sum(axis=0)
        return (sums * (ranks / before)).astype(rows.dtype) if op == "mean" else sums

    return _map(resize, lambda x: x, state)


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

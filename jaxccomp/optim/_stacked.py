"""Optimiser states between the calls of a jitted ``shard_map``: each device has its residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import PartitionSpec

from jaxccomp.optim._allreduce import FeedbackState, PolicyState

if TYPE_CHECKING:
    import optax


def state_specs(optimizer: optax.GradientTransformation, params: Any, axis_name: Any) -> Any:
    """The partition specs of an optimiser's state, stacked by `stack_residuals`.

    A Python loop over a jitted ``shard_map`` carries the state as arrays of the whole mesh. Of what
    is the same on all devices there is one, ``P()``. The residuals that `allreduce_gradients` keeps
    with error feedback differ from device to device: they are rows of one array, ``P(axis_name)``.

    Args:
      optimizer: a transformation that has `allreduce_gradients` in it, or not.
      params: a pytree of the parameters, or of their shapes (``jax.ShapeDtypeStruct``).
      axis_name: the axis, or the tuple of axes, that `allreduce_gradients` was given.

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
    """The state with residuals as rows: what a function under ``shard_map`` returns.

    Args:
      state: of an optimiser, as its ``init`` or ``update`` gave it on this device.

    Returns:
      The same, but residuals have a leading axis of length 1, along which `state_specs` joins those
      of all devices.
    """
    return _map(lambda x: x[None], lambda x: x, state)


def unstack_residuals(state: Any) -> Any:
    """The opposite of `stack_residuals`, of what a function under ``shard_map`` gets."""
    return _map(lambda x: x[0], lambda x: x, state)


def _map(of_residual: Callable[[Any], Any], of_other: Callable[[Any], Any], state: Any) -> Any:
    def mapped(part: Any) -> Any:
        if isinstance(part, FeedbackState):
            return FeedbackState(jax.tree.map(of_residual, part.residual))
        if isinstance(part, PolicyState):
            return PolicyState(of_other(part.count), jax.tree.map(of_residual, part.residual))
        return of_other(part)

    kept = (FeedbackState, PolicyState)
    return jax.tree.map(mapped, state, is_leaf=lambda part: isinstance(part, kept))

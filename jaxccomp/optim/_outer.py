"""Outer steps: ranks train independently, then average the changes of their parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxccomp import _jax, errors
from jaxccomp._api.error_feedback import all_finite, whole_step
from jaxccomp._api.options import Options, operation
from jaxccomp.ops import allreduce
from jaxccomp.optim._allreduce import allreduce_gradients
from jaxccomp.optim._policy import Rule
from jaxccomp.optim._stacked import stack_residuals, state_specs, unstack_residuals
from jaxccomp.optim._states import OuterState, load_optax, require_floating

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True)
class Outer:
    """Outer steps; the result of `diloco`, `local_sgd` and `sparse_loco`.

    Attributes:
      init: ``init(params)`` returns the first `OuterState`. All ranks must have the same
        parameters: broadcast them first. It communicates nothing.
      step: ``step(params, state, comm=None)`` returns the parameters to continue from, the same
        bits on all ranks, and the next state. ``params`` are the parameters that this rank has
        trained since the last outer step. ``comm`` is the communicator whose ranks take part, by
        default the options' communicator; it may differ in every call, and is a static argument of
        ``jax.jit``. If a rank's parameters are not finite, ``step`` returns NaN on all ranks and
        the old state: continue from ``state.params``. With ``exclude_nonfinite=True`` the step is
        the mean of the other ranks.
      options: the options of ``step``'s collectives.
      mesh: if given, its devices are the ranks, and the functions take all devices' values at once.
    """

    init: Callable[[Any], OuterState]
    step: Callable[..., tuple[Any, OuterState]]
    options: Options
    mesh: Mesh | None = None


@operation
def diloco(
    optimizer: optax.GradientTransformation | None = None,
    error_feedback: bool = False,
    bucket_bytes: int | None = None,
    policy: Rule | Sequence[Rule] = (),
    mesh: Mesh | None = None,
    exclude_nonfinite: bool = False,
    residual_dtype: str | None = "float32",
    **options: Unpack[Options],
) -> Outer:
    """DiLoCo: every H steps, an outer optimiser applies the mean change of the ranks' parameters.

    Each rank trains independently, with a local inner optimiser. Every H steps the program calls
    ``step``. The outer gradient is the parameters after the last outer step minus this rank's
    parameters now; the outer optimiser gets its mean over all ranks (Douillard et al. 2023,
    "DiLoCo: Distributed Low-Communication Training of Language Models", algorithm 1). Outer
    gradients have the parameters' dtypes.

    It is not an ``optax.GradientTransformation``: these return differences, and adding the same
    difference to parameters that differ between ranks rounds differently.

    On the wire: in ``step``, as `allreduce_gradients` with the same arguments; nothing between two
    calls.

    Args:
      optimizer: the outer optimiser, an optax transformation; by default SGD with Nesterov momentum
        of 0.9 and a learning rate of 0.7, as in the paper.
      error_feedback: whether the loss of a lossy codec is added to the next outer gradients.
      bucket_bytes: as for `allreduce_gradients`.
      policy: as for `allreduce_gradients`; ``from_step`` counts outer steps.
      mesh: with ``axis_name``, the mesh that has this axis: the parameters of ``step`` then have a
        leading axis with one row per device. With ``axis_name`` and without ``mesh``, call ``step``
        inside ``shard_map``.
      exclude_nonfinite: whether to exclude a rank whose parameters are not finite from the mean.
        The excluded rank gets the others' result. This takes one more `jaxccomp.allreduce`, of one
        number.
      residual_dtype: as for `allreduce_gradients`.

    Returns:
      An `Outer`. Call its functions inside ``jax.jit`` or outside. Parameters must be floating.

    Example:
      >>> outer = jaxccomp.optim.diloco(codec="int4", error_feedback=True)  # doctest: +SKIP
      >>> outer_step, state = jax.jit(outer.step), outer.init(params)       # doctest: +SKIP
      >>> for number, batch in enumerate(batches, 1):                       # doctest: +SKIP
      ...     params, inner = train(params, inner, batch)
      ...     if number % 30 == 0:
      ...         params, state = outer_step(params, state)
    """
    optax = load_optax()
    outer_optimizer = (
        optax.sgd(0.7, momentum=0.9, nesterov=True) if optimizer is None else optimizer
    )
    exchange = functools.partial(
        allreduce_gradients,
        error_feedback=error_feedback,
        bucket_bytes=bucket_bytes,
        policy=policy,
        residual_dtype=residual_dtype,
    )
    return make_outer("diloco", exchange, outer_optimizer, mesh, exclude_nonfinite, options)


@operation
def local_sgd(
    error_feedback: bool = False,
    bucket_bytes: int | None = None,
    policy: Rule | Sequence[Rule] = (),
    mesh: Mesh | None = None,
    exclude_nonfinite: bool = False,
    residual_dtype: str | None = "float32",
    **options: Unpack[Options],
) -> Outer:
    """Local SGD: every H steps, ranks take the mean of their parameters (Stich 2019).

    This is `diloco` with plain SGD of learning rate 1: ranks send the difference to the parameters
    of the last outer step, so a lossy codec affects the difference, not the parameters.

    On the wire: as `diloco`.

    Args:
      error_feedback: as for `diloco`.
      bucket_bytes: as for `diloco`.
      policy: as for `diloco`.
      mesh: as for `diloco`.
      exclude_nonfinite: as for `diloco`.
      residual_dtype: as for `diloco`.

    Returns:
      An `Outer`.

    Example:
      >>> outer = jaxccomp.optim.local_sgd(codec="bf16")                    # doctest: +SKIP
    """
    optimizer = load_optax().sgd(1.0)
    return diloco(
        optimizer,
        error_feedback,
        bucket_bytes,
        policy,
        mesh,
        exclude_nonfinite,
        residual_dtype,
        **options,
    )


def make_outer(
    name: str,
    exchange: Callable[..., optax.GradientTransformation],
    optimizer: optax.GradientTransformation,
    mesh: Mesh | None,
    exclude_nonfinite: bool,
    options: Options,
) -> Outer:
    """Return outer steps that average outer gradients by ``exchange(**options)``."""
    optax = load_optax()
    exchange(**options)  # raise now, not while training
    if mesh is not None and options.get("axis_name") is None:
        raise errors.InvalidArgumentError(
            f"{name}: mesh= goes with axis_name=, the axis of the mesh that ranks are along."
        )

    def init(params: Any) -> OuterState:
        require_floating(name, params)
        # Copy: programs donate the parameters that they train.
        own = jax.tree.map(jnp.copy, params)
        return OuterState(own, exchange(**options).init(own), optimizer.init(own))

    def step(params: Any, state: OuterState, comm: Any = None) -> tuple[Any, OuterState]:
        how: Options = options if comm is None else {**options, "comm": comm}
        _check_state(name, state)
        check_alike(name, params, state.params)
        gradients = jax.tree.map(lambda old, new: old - new, state.params, params)
        included: Any = None
        if exclude_nonfinite:
            gradients, included = _included(gradients, how)
        mean, exchanged = exchange(**how).update(gradients, state.exchange)
        if exclude_nonfinite:
            mean = jax.tree.map(lambda g: (g / included).astype(g.dtype), mean)
        updates, optimizer_state = optimizer.update(mean, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        return whole_step(params, OuterState(params, exchanged, optimizer_state), state)

    outer = Outer(init, step, options)
    return outer if mesh is None else _on_mesh(name, outer, mesh)


def _included(gradients: Any, options: Options) -> tuple[Any, Any]:
    """Return the gradients, zero if not all are finite, and the fraction of ranks with finite ones.

    If no rank has finite gradients, the fraction is 0 and the mean divided by it NaN.
    """
    finite = all_finite(gradients)
    names = ("axis_name", "comm", "axis_index_groups", "backend")
    how: Any = {name: options[name] for name in names if name in options}  # type: ignore
    included = allreduce(finite.astype(jnp.float32), "mean", **how)
    return jax.tree.map(lambda g: jnp.where(finite, g, jnp.zeros_like(g)), gradients), included


def _check_state(name: str, state: Any) -> None:
    if not isinstance(state, OuterState):
        raise errors.InvalidArgumentError(
            f"{name}: the state must be an OuterState, which init(params) makes, not "
            f"{type(state).__name__}."
        )


def check_alike(name: str, params: Any, like: Any) -> None:
    """Raises unless ``params`` have the leaves, shapes and dtypes of ``like``."""
    given, known = (
        {
            jax.tree_util.keystr(path): f"{jnp.result_type(leaf).name}{list(jnp.shape(leaf))}"
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        }
        for tree in (params, like)
    )
    for path in [*known, *given]:
        if given.get(path) != known.get(path):
            raise errors.InvalidArgumentError(
                f"{name}: the parameters must match the ones given to init(params), which have at "
                f"{path or 'the root'} {known.get(path, 'nothing')}, not "
                f"{given.get(path, 'nothing')}; with others, begin with init(params) again."
            )


def _on_mesh(name: str, outer: Outer, mesh: Mesh) -> Outer:
    """Return ``outer`` for all devices of a mesh; parameters of ``step`` have a row per device."""
    axes = outer.options.get("axis_name")
    everywhere, split = PartitionSpec(), PartitionSpec(axes)
    mapped = functools.partial(jax.shard_map, mesh=mesh)

    def init(params: Any) -> OuterState:
        specs = state_specs(outer, params, axes)  # type: ignore[arg-type]  # it has an init

        def on_device(params: Any) -> Any:
            return stack_residuals(outer.init(params))

        return mapped(on_device, in_specs=everywhere, out_specs=specs)(params)

    def step(params: Any, state: OuterState, comm: Any = None) -> tuple[Any, OuterState]:
        if comm is not None:
            raise errors.InvalidArgumentError(
                f"{name}: comm= names processes; with mesh= ranks are devices along {axes!r}."
            )
        _check_state(name, state)
        specs = state_specs(outer, state.params, axes)  # type: ignore[arg-type]
        names = axes if isinstance(axes, (tuple, list)) else (axes,)

        def on_device(rows: Any, state: Any) -> Any:
            own = jax.tree.map(lambda row: row[0], rows)
            params, state = outer.step(own, unstack_residuals(state))
            rows = jax.tree.map(lambda x: _jax.vary(x, names)[None], params)
            return rows, stack_residuals(state)

        return mapped(on_device, in_specs=(split, specs), out_specs=(split, specs))(params, state)

    return Outer(init, step, outer.options, mesh)

"""A data-parallel training step in one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxccomp import _jax, errors
from jaxccomp._api.options import Options, operation
from jaxccomp.ops import allreduce, bcast
from jaxccomp.optim._allreduce import allreduce_gradients
from jaxccomp.optim._policy import Rule
from jaxccomp.optim._stacked import stack_residuals, state_specs, unstack_residuals
from jaxccomp.optim._states import load_optax

if TYPE_CHECKING:
    import optax


class TrainStep(NamedTuple):
    """The result of `train_step`.

    Attributes:
      init: ``init(params)`` returns the parameters, the same on all ranks, and the first state.
      step: ``step(params, state, *batch)`` returns the next parameters and state, and the mean of
        the loss over all ranks; with ``has_aux`` also the auxiliary output. It is jitted, and
        donates the given parameters and state.
    """

    init: Callable[[Any], tuple[Any, Any]]
    step: Callable[..., tuple[Any, ...]]


@operation
def train_step(
    loss: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    error_feedback: bool = False,
    bucket_bytes: int | None = None,
    policy: Rule | Sequence[Rule] = (),
    mesh: Mesh | None = None,
    has_aux: bool = False,
    residual_dtype: str | None = "float32",
    **options: Unpack[Options],
) -> TrainStep:
    """Returns a data-parallel training step: gradients, their mean over all ranks, and the update.

    Between processes each rank passes its own batch. With ``axis_name`` and ``mesh`` one process
    passes the whole batch, split over the devices along the first dimension, and the state has a
    row of residuals per device (`state_specs`). Scalars of the batch, such as typed PRNG keys, are
    replicated; ``jax.random.fold_in(key, jax.lax.axis_index(axis_name))`` returns a different key
    on each device.

    On the wire: in ``init``, between processes, one `jaxccomp.bcast` of the parameters with
    "lossless"; in ``step``, as `allreduce_gradients`, and the loss.

    Args:
      loss: ``loss(params, *batch)`` returns a scalar, the mean over the batch. ``params`` is a
        pytree, such as linen's variables or the parameters of ``nnx.split(model, nnx.Param)``. With
        ``has_aux`` it returns a pair, the scalar and a pytree of arrays.
      optimizer: an optax transformation. It gets the mean of the gradients.
      error_feedback: as for `allreduce_gradients`.
      bucket_bytes: as for `allreduce_gradients`.
      policy: as for `allreduce_gradients`.
      mesh: with ``axis_name``, the mesh that has this axis.
      has_aux: whether ``loss`` has auxiliary output, as for ``jax.grad``. The output is not
        reduced: between processes ``step`` returns this rank's output, with ``mesh`` a row per
        device.
      residual_dtype: as for `allreduce_gradients`.

    Returns:
      ``(init, step)``; see `TrainStep`.

    Example:
      >>> init, step = jaxccomp.optim.train_step(                          # doctest: +SKIP
      ...     loss, optax.adam(1e-3), codec="onebit", error_feedback=True, bucket_bytes=4 << 20)
      >>> params, state = init(model.init(key, x))                         # doctest: +SKIP
      >>> params, state, value = step(params, state, x, y)                 # doctest: +SKIP
    """
    optax = load_optax()
    axis_name = options.get("axis_name")
    if (axis_name is None) != (mesh is None):
        raise errors.InvalidArgumentError(
            "train_step: axis_name= and mesh= go together; without both, ranks are processes."
        )
    average = allreduce_gradients(
        error_feedback=error_feedback,
        bucket_bytes=bucket_bytes,
        policy=policy,
        residual_dtype=residual_dtype,
        **options,
    )
    chain = optax.chain(average, optimizer)
    where: Any = {name: value for name, value in options.items() if name in ("axis_name", "comm")}

    def update(own: Any, params: Any, state: Any, batch: Any) -> tuple[Any, ...]:
        value, grads = jax.value_and_grad(loss, has_aux=has_aux)(own, *batch)
        value, *aux = value if has_aux else (value,)
        updates, state = chain.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        return params, state, allreduce(value, "mean", **where), *aux

    if mesh is None:
        return TrainStep(
            lambda params: _start(chain, bcast(params, root=0, codec="lossless", **where)),
            jax.jit(
                lambda params, state, *batch: update(params, params, state, batch),
                donate_argnums=(0, 1),
            ),
        )

    everywhere, split = PartitionSpec(), PartitionSpec(axis_name)
    names = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)

    @jax.jit
    def init(params: Any) -> tuple[Any, Any]:
        specs = state_specs(chain, params, axis_name)
        start = jax.shard_map(
            lambda params: stack_residuals(chain.init(params)),
            mesh=mesh,
            in_specs=everywhere,
            out_specs=specs,
        )
        return params, start(params)

    def step(params: Any, state: Any, *batch: Any) -> tuple[Any, ...]:
        specs = state_specs(chain, params, axis_name)

        def on_device(params: Any, state: Any, *batch: Any) -> tuple[Any, ...]:
            # With invariant parameters, jax.grad would sum the gradients over the devices.
            own = jax.lax.pcast(params, axis_name, to="varying")
            params, state, value, *aux = update(own, params, unstack_residuals(state), batch)
            rows = jax.tree.map(lambda x: _jax.vary(jnp.asarray(x), names)[None], aux)
            return params, stack_residuals(state), value, *rows

        return jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(everywhere, specs, *_batch_specs(batch, mesh, names)),
            out_specs=(everywhere, specs, everywhere, *[split] * has_aux),
        )(params, state, *batch)

    return TrainStep(init, jax.jit(step, donate_argnums=(0, 1)))


def _batch_specs(batch: Sequence[Any], mesh: Mesh, names: Sequence[Any]) -> Any:
    """Return specs that split arrays along their first dimension and replicate scalars."""
    devices = math.prod(mesh.shape[name] for name in names)

    def spec(path: Any, leaf: Any) -> PartitionSpec:
        shape = jnp.shape(leaf)
        if shape and shape[0] % devices:
            raise errors.InvalidArgumentError(
                f"train_step: the batch is split along its first dimension over {devices} devices, "
                f"but batch{jax.tree_util.keystr(path)} has the shape {list(shape)}. Pad it, or "
                "close over it in the loss where all devices need the whole; a PRNG key is a "
                "scalar if jax.random.key makes it, and goes whole to all."
            )
        return PartitionSpec(tuple(names)) if shape else PartitionSpec()

    return jax.tree_util.tree_map_with_path(spec, tuple(batch))


def _start(chain: optax.GradientTransformation, params: Any) -> tuple[Any, Any]:
    return params, chain.init(params)

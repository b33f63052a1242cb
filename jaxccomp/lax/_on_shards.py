"""Parts of a step that run on each device's own shards, while XLA partitions the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from jaxccomp import _jax, errors

T = TypeVar("T")


def on_shards(function: Callable[..., T], in_specs: Any, out_specs: Any) -> Callable[..., T]:
    """Returns a function that runs on each device's own shards over the axes that XLA partitions.

    Inside `data_parallel` (or a ``shard_map`` with ``axis_names``) one axis is explicit, and XLA
    partitions computations over the mesh's other axes. XLA does not know that a compressed
    collective can run on shards of its operand, and gathers the operand first. With this function,
    each device reduces and compresses its own shard, with the devices along the explicit axis that
    have the same shard.

    On the wire: the collectives of ``function``, on shards instead of whole arrays. If an operand's
    sharding differs from ``in_specs``, XLA first moves it. The error bound is the codec's, with
    blocks within a shard.

    Args:
      function: of arrays and pytrees, along the explicit axis: a collective of this package, or
        the ``update`` of `jaxccomp.optim.allreduce_gradients`.
      in_specs: partition specs of the arguments over the other axes, as for ``jax.shard_map``: a
        tuple with an entry for each, or one entry for all. Gradients have the specs of the
        parameters; ``P()`` is for arguments that are equal on these devices.
      out_specs: partition specs of the results.

    Returns:
      A function of the same arguments and results. In a ``shard_map`` over all axes, in which
      arrays are shards already, it calls ``function`` directly.

    Raises:
      InvalidArgumentError: when it is called outside of ``shard_map``.

    Example:
      >>> def train_step(params, batch):                                   # doctest: +SKIP
      ...     own = jax.lax.pcast(params, "data", to="varying")
      ...     grads = jax.grad(loss)(own, batch)
      ...     reduce = functools.partial(
      ...         jaxccomp.allreduce, op="mean", axis_name="data", codec="int8")
      ...     grads = jaxccomp.on_shards(reduce, specs, specs)(grads)
      ...     return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
      >>> step = jaxccomp.data_parallel(train_step, "data", mesh=mesh)     # doctest: +SKIP
    """

    def called(*args: Any) -> T:
        axes = _jax.axes_of_xla()
        if axes is None:
            raise errors.InvalidArgumentError(
                "on_shards: there is no explicit axis here. Call it inside of "
                "jaxccomp.data_parallel(step, axis, mesh=mesh), or of jax.shard_map(..., "
                "axis_names={axis})."
            )
        if not axes:
            return function(*args)
        # A NamedTuple, such as an optimiser state, is one entry.
        each = in_specs if type(in_specs) is tuple else (in_specs,) * len(args)
        return jax.shard_map(function, in_specs=each, out_specs=out_specs, axis_names=axes)(
            *_jax.tell_devices(args)
        )

    return called

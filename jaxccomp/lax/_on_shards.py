"""Parts of a step that run on each device's own shards, where XLA partitions the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from jaxccomp import _compat, errors

T = TypeVar("T")


def on_shards(function: Callable[..., T], in_specs: Any, out_specs: Any) -> Callable[..., T]:
    """A function that is called with each device's own shards over the axes that XLA partitions.

    Inside `data_parallel` (or a ``shard_map`` with ``axis_names``) one axis is explicit, and XLA
    partitions what is computed over the mesh's others. It does not know that a compressed
    collective could run on parts of its operand, and gathers it first. Here it need not: each
    device reduces, and compresses, its own shard, with the devices along the explicit axis that
    have the same one.

    On the wire: what ``function`` says, of shards instead of whole arrays. This adds nothing,
    unless an operand has another sharding than ``in_specs`` says: then XLA moves it. The error
    bound is that of the codec, whose blocks are those of a shard.

    Args:
      function: of arrays and pytrees, along the explicit axis: a collective of this package, or
        the ``update`` of `jaxccomp.optim.allreduce_gradients`.
      in_specs: partition specs of the arguments over the other axes, as for ``jax.shard_map``: a
        tuple of an entry for each, or one entry for all. Of gradients they are those of the
        parameters; ``P()`` is for what all of these devices have alike.
      out_specs: those of the results.

    Returns:
      A function of the same arguments and results. In a ``shard_map`` over all axes, where arrays
      are shards already, it is ``function`` itself.

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
        axes = _compat.axes_of_xla()
        if axes is None:
            raise errors.InvalidArgumentError(
                "on_shards: there is no explicit axis here. Call it inside of "
                "jaxccomp.data_parallel(step, axis, mesh=mesh), or of jax.shard_map(..., "
                "axis_names={axis})."
            )
        if not axes:
            return function(*args)
        # A NamedTuple, such as a state, is one entry.
        each = in_specs if type(in_specs) is tuple else (in_specs,) * len(args)
        return jax.shard_map(function, in_specs=each, out_specs=out_specs, axis_names=axes)(
            *_compat.tell_devices(args)
        )

    return called

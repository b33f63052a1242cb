"""Training steps with one explicit mesh axis; XLA partitions them over the other axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxccomp import _jax, errors

T = TypeVar("T")


def data_parallel(
    step: Callable[..., T],
    axis_name: str,
    *,
    mesh: Mesh | None = None,
    batch_argnums: int | Sequence[int] = -1,
) -> Callable[..., T]:
    """Returns a training step with one explicit mesh axis; XLA partitions the other axes.

    Under ``jax.jit`` with sharded arguments, XLA inserts the collectives when it compiles, so they
    cannot be compressed. Here each device along ``axis_name`` runs ``step`` on its part of the
    batch, and ``step`` contains the collectives: the mean of gradients and of reported values.
    `compress` can then compress them. Over the mesh's other axes, over which parameters may be
    sharded, XLA still inserts collectives and chooses layouts (``shard_map`` with ``axis_names``).

    On the wire: the collectives of ``step`` only. XLA does not know that a compressed collective
    can run on shards of its operand, and gathers the operand over the other axes. If parameters are
    sharded over these axes, this is an all-gather of each gradient; otherwise it is free.
    `on_shards` avoids the gather.

    Args:
      step: a function of arrays and pytrees. It gets its device's part of the batch; other
        arguments are unchanged. Its results must be equal on all devices along the axis: reduce
        gradients with ``jax.lax.pmean``, `jaxccomp.optim.allreduce_gradients` or the like. JAX
        rejects other results by their type (``check_vma``). The gradient of ``jax.lax.pmean(loss)``
        with respect to parameters that do not vary is already the mean.
      axis_name: the axis.
      mesh: the mesh; by default the one of ``jax.set_mesh``.
      batch_argnums: the arguments to split along their leaves' first dimension; negative numbers
        count from the end.

    Returns:
      A function of the same arguments and results, for ``jax.jit``.

    Raises:
      InvalidArgumentError: for an axis that the mesh does not have; when called, for
        ``batch_argnums`` out of range, and for a batch that does not divide by the devices.

    Example:
      >>> step = jaxccomp.data_parallel(train_step, "data", mesh=mesh)     # doctest: +SKIP
      >>> step = jax.jit(jaxccomp.compress(step, "int8"), donate_argnums=0)  # doctest: +SKIP
    """
    if mesh is not None:
        _check_axis(mesh, axis_name)
    numbers = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)

    def spread(*args: Any) -> T:
        if not all(-len(args) <= number < len(args) for number in numbers):
            raise errors.InvalidArgumentError(
                f"data_parallel: batch_argnums={batch_argnums!r}, but the step was given "
                f"{len(args)} arguments."
            )
        around = mesh if mesh is not None else jax.sharding.get_abstract_mesh()
        _check_axis(around, axis_name)
        split = {number % len(args) for number in numbers}
        for number in sorted(split):
            _check_divides(number, args[number], around.shape[axis_name])
        specs = tuple(
            PartitionSpec(axis_name) if i in split else PartitionSpec() for i in range(len(args))
        )
        return jax.shard_map(
            step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), axis_names={axis_name}
        )(*args)

    return spread


def _check_divides(number: int, argument: Any, devices: int) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(argument)[0]:
        shape = jnp.shape(leaf)
        if not shape or shape[0] % devices:
            raise errors.InvalidArgumentError(
                f"data_parallel: argument {number} of the step is split along its first dimension "
                f"over {devices} devices, but its leaf {jax.tree_util.keystr(path) or 'itself'} "
                f"has the shape {list(shape)}. Pad it, or name other arguments by batch_argnums=."
            )


def _check_axis(mesh: Any, axis_name: str) -> None:
    if axis_name not in mesh.axis_names:
        raise errors.unknown(
            "axis of data_parallel's mesh",
            axis_name,
            mesh.axis_names,
            "Give mesh=, or use jax.set_mesh.",
        )


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
            *_jax.record_mesh(args)
        )

    return called

"""Steps for ``jax.jit`` with sharded arguments and one explicit axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh, PartitionSpec

from jaxccomp import errors

T = TypeVar("T")


def data_parallel(
    step: Callable[..., T],
    axis_name: str,
    *,
    mesh: Mesh | None = None,
    batch_argnums: int | Sequence[int] = -1,
) -> Callable[..., T]:
    """Returns a training step in which one axis of the mesh is explicit, the others XLA's.

    Under ``jax.jit`` with sharded arguments, XLA inserts the collectives when it compiles, so they
    cannot be compressed. Here each device along ``axis_name`` runs ``step`` on its part of the
    batch, and ``step`` contains the collectives: the mean of gradients and of reported values.
    `compress` can then compress them. Over the mesh's other axes, by which parameters may be
    sharded, XLA still inserts collectives and chooses layouts (``shard_map`` with ``axis_names``).

    On the wire: the collectives of ``step`` only. XLA does not know that a compressed collective
    can run on shards of its operand, and gathers the operand over the other axes: free if
    parameters are not sharded by them, otherwise an all-gather of each gradient. `on_shards` avoids
    it.

    Args:
      step: a function of arrays and pytrees. It gets its device's part of the batch; other
        arguments are unchanged. Its results must be equal on all devices along the axis: reduce
        gradients with ``jax.lax.pmean``, `jaxccomp.optim.allreduce_gradients` or the like. JAX
        refuses other results by their type (``check_vma``). The gradient of
        ``jax.lax.pmean(loss)`` by parameters that do not vary is already the mean.
      axis_name: the axis.
      mesh: the mesh; by default the one of ``jax.set_mesh``.
      batch_argnums: the arguments to split along their leaves' first dimension; negative numbers
        count from the end.

    Returns:
      A function of the same arguments and results, for ``jax.jit``.

    Raises:
      InvalidArgumentError: for an axis that the mesh does not have; when called, for
        ``batch_argnums`` out of range.

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
        specs = tuple(
            PartitionSpec(axis_name) if i in split else PartitionSpec() for i in range(len(args))
        )
        return jax.shard_map(
            step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), axis_names={axis_name}
        )(*args)

    return spread


def _check_axis(mesh: Any, axis_name: str) -> None:
    if axis_name not in mesh.axis_names:
        raise errors.unknown(
            "axis of data_parallel's mesh",
            axis_name,
            mesh.axis_names,
            "Give mesh=, or use jax.set_mesh.",
        )

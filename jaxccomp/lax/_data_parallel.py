"""Steps for ``jax.jit`` with sharded arguments, with one axis made explicit."""

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
    """A training step with one axis of the mesh in its own hands, and the others in XLA's.

    Under ``jax.jit`` with sharded arguments XLA finds the collectives itself, when it compiles, so
    nobody can compress them. Here devices along ``axis_name`` each run ``step`` on their part of
    the batch, and what they exchange stands in it: the mean of gradients, and of what is reported.
    `compress` can then compress it. Over the mesh's other axes, by which parameters may be
    sharded, XLA still finds collectives and layouts (``shard_map`` with ``axis_names``).

    On the wire: what ``step`` says; this adds nothing. XLA does not know that a compressed
    collective could run on parts of its operand, and gathers over the other axes what it gets: that
    costs nothing where parameters are not sharded by them, and an all-gather of each gradient where
    they are. `on_shards` avoids that.

    Args:
      step: a function of arrays and pytrees. It gets its device's part of the batch, and all else
        as it is. Its results must be the same on all devices along the axis: gradients have to go
        through ``jax.lax.pmean``, `jaxccomp.optim.allreduce_gradients` or the like. By its type
        (``check_vma``), JAX refuses a result that is not. The gradient of ``jax.lax.pmean(loss)``
        by parameters that do not vary is the mean already.
      axis_name: the axis.
      mesh: the mesh; by default that of ``jax.set_mesh``.
      batch_argnums: which arguments are split along their leaves' first dimension; negative numbers
        count from the end.

    Returns:
      A function of the same arguments and results, for ``jax.jit``.

    Raises:
      InvalidArgumentError: for an axis that the mesh does not have; when called, for
        ``batch_argnums`` that are not there.

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

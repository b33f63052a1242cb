"""Named axes in scope, and varying types: the axes over which a value varies (``check_vma``)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from jaxccomp._jax import internals
from jaxccomp._jax.internals import uses

config = internals.module("jax._src.config")
core = internals.module("jax._src.core")
mesh = internals.module("jax._src.mesh")
parallel = internals.module("jax._src.lax.parallel")

AxisName = Hashable


@uses("named axes")
def axes_in_scope() -> dict[AxisName, int]:
    """Return names and sizes of the axes of shard_map, pmap and vmap around the caller."""
    return dict(core.get_axis_env().axis_sizes)


@uses("named axes")
def mesh_axis_names() -> tuple[AxisName, ...]:
    """Return the axes of the mesh around the caller, in the mesh's order."""
    return tuple(mesh.get_abstract_mesh().axis_names)


@uses("named axes")
def all_manual(axes: Iterable[AxisName]) -> bool:
    """Return whether all axes are manual axes of ``shard_map``, instead of axes of ``vmap``."""
    manual = mesh.get_abstract_mesh().manual_axes
    return all(axis in manual for axis in axes)


@uses("named axes")
def axes_of_xla() -> frozenset[AxisName] | None:
    """Return the mesh's axes that XLA partitions (not manual); None outside of ``shard_map``."""
    around = mesh.get_abstract_mesh()
    manual = frozenset(around.manual_axes)
    return frozenset(around.axis_names) - manual if manual else None


@uses("named axes")
def axis_effects(axes: Sequence[AxisName], name: str) -> set[Any]:
    """Check that the axes exist and allow communication, and return their effects."""
    parallel._check_axis_names(tuple(axes), name)
    return {core.NamedAxisEffect(axis) for axis in axes}


@uses("varying types")
def checks_varying() -> bool:
    """Return whether types have varying axes (``shard_map(check_vma=True)``)."""
    return bool(config._check_vma.value)


@uses("varying types")
def varying(x: Any) -> frozenset[AxisName]:
    """Return the manual axes over which the type of a value varies."""
    return core.typeof(x).mat.varying


@uses("varying types")
def varying_of(atom: Any) -> frozenset[AxisName]:
    """Return the manual axes over which a variable or literal of a jaxpr varies."""
    return frozenset(atom.aval.mat.varying)


@uses("varying types")
def is_partial_sum(x: Any) -> bool:
    """Return whether a value's type is unreduced or reduced; only jax.lax supports these types."""
    mat = core.typeof(x).mat
    return bool(mat.unreduced or mat.reduced)


@uses("varying types")
def vary(x: Any, axes: Iterable[AxisName]) -> Any:
    """Return ``x`` with a type that varies over the manual axes among ``axes``."""
    missing = not_varying(x, axes)
    return core.pvary(x, missing) if missing else x


@uses("varying types")
def not_varying(x: Any, axes: Iterable[AxisName]) -> tuple[AxisName, ...]:
    """Return the manual axes among ``axes`` over which the type of ``x`` does not vary."""
    if not config._check_vma.value:
        return ()
    manual = mesh.get_abstract_mesh().manual_axes
    return tuple(a for a in axes if a in manual and a not in core.typeof(x).mat.varying)


@uses("varying types")
def result_aval(aval: Any, shape: Sequence[int], dropped: Iterable[AxisName], keep: slice) -> Any:
    """Return the type of a result: ``aval`` in another shape, not varying over ``dropped``.

    ``keep``: the operand's dimensions whose sharding the result's trailing dimensions get.
    """
    spec = tuple(aval.sharding.spec)[keep]
    spec = (None,) * (len(shape) - len(spec)) + spec
    mat = aval.mat.update(varying=aval.mat.varying - frozenset(dropped))
    sharding = NamedSharding(aval.sharding.mesh, PartitionSpec(*spec))
    return aval.update(shape=tuple(shape), sharding=sharding, manual_axis_type=mat)


@uses("varying types")
def invariant_aval(aval: Any) -> Any:
    """Return the type without varying axes, for code that is traced with ``check_vma`` off."""
    nothing = frozenset()
    mat = aval.mat.update(varying=nothing, unreduced=nothing, reduced=nothing)
    return aval.update(manual_axis_type=mat)

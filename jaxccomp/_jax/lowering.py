"""The context of a lowering rule, the devices of its program, and the operations it emits."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from jaxccomp._jax import internals
from jaxccomp._jax.axes import AxisName, invariant_aval
from jaxccomp._jax.internals import uses
from jaxccomp._jax.primitives import ORDERED, new_primitive
from jaxccomp._jax.source_lines import at_lowered_operation

config = internals.module("jax._src.config")
core = internals.module("jax._src.core")
ir = internals.module("jaxlib.mlir.ir")
mesh_lib = internals.module("jax._src.mesh")
mlir = internals.module("jax._src.interpreters.mlir")
pxla = internals.module("jax._src.interpreters.pxla")
sharding_impls = internals.module("jax._src.sharding_impls")


@uses("lowering context")
def platforms(ctx: Any) -> tuple[str, ...]:
    """Return the platforms that the program is lowered for."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


@uses("lowering context")
def avals_in(ctx: Any) -> Sequence[Any]:
    """Return shapes and dtypes of the operands of the operation that is lowered."""
    return ctx.avals_in


@uses("lowering context")
def avals_out(ctx: Any) -> Sequence[Any]:
    """Return shapes and dtypes of the results of the operation that is lowered."""
    return ctx.avals_out


@uses("lowering context")
def device_count(ctx: Any) -> int:
    """Return how many devices the program being lowered runs on."""
    context = ctx.module_context.axis_context
    if isinstance(context, sharding_impls.SPMDAxisContext):
        return math.prod(context.mesh.axis_sizes)
    if isinstance(context, sharding_impls.ShardingContext):
        return context.num_devices or 1
    return 1


@uses("lowering context")
def is_partly_automatic(ctx: Any) -> bool:
    """Return whether XLA still partitions the program over some axis (``axis_names=``)."""
    context = ctx.module_context.axis_context
    if not isinstance(context, sharding_impls.SPMDAxisContext):
        return False
    automatic = set(context.mesh.axis_names) - set(context.manual_axes)
    return bool(context.manual_axes) and any(context.mesh.shape[a] > 1 for a in automatic)


@uses("lowering context")
def call_site_number(ctx: Any, participants: Hashable) -> int:
    """Return the next number, from 0 on, of a call between ``participants`` in this module.

    Calls are numbered in the order of the program's text. XLA's schedule may differ between ranks
    with different shapes; the numbers depend neither on shapes nor on calls between other
    participants. A function that is lowered once and called twice gets one number.
    """
    shared = ctx.module_context.cached_primitive_lowerings  # lives as long as the module
    key = ("jaxccomp", "call sites", participants)
    shared[key] = shared.get(key, -1) + 1
    return shared[key]


@uses("lowering context")
def program_name(ctx: Any) -> str:
    """Return JAX's name of the program being lowered: ``jit_step`` for a jitted ``step``."""
    return ir.StringAttr(ctx.module_context.module.operation.attributes["sym_name"]).value


@uses("mesh devices")
def replica_groups(
    ctx: Any, axes: Sequence[AxisName], index_groups: Sequence[Sequence[int]] | None
) -> list[list[Any]] | None:
    """Return the devices of each group that communicates; None for a mesh without devices."""
    mesh = _mesh_of(ctx)
    if mesh is None:
        return None
    devices = list(mesh.devices.flat)
    places = pxla.axis_groups(sharding_impls.SPMDAxisContext(mesh), axes)
    groups = [[devices[place] for place in group] for group in places]
    if index_groups is not None:
        groups = [[group[i] for i in indices] for group in groups for indices in index_groups]
    return groups


_MESH = ("jaxccomp", "mesh")


def _mesh_of(ctx: Any) -> Any:
    """Return the mesh of the lowering, with its devices; None if the devices are not known."""
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    if isinstance(mesh, mesh_lib.Mesh):
        return mesh
    outer = ctx.module_context.cached_primitive_lowerings.get(_MESH)
    # All meshes of a program have the same devices in the same order, so the outer mesh replaces an
    # abstract mesh of the same shape.
    known = mesh is not None and outer is not None and outer.shape_tuple == mesh.shape_tuple
    return outer if known else None


def record_mesh(tree: Any) -> Any:
    """Return ``tree`` unchanged, and let a nested ``shard_map`` find its devices.

    JAX lowers a nested ``shard_map`` with a mesh without devices. The primitive bound here is
    lowered earlier, with the outer mesh, and stores that mesh for `replica_groups`.
    """
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, _RECORD_MESH.bind(*leaves) if leaves else leaves)


@uses("mesh devices")
def _keep_mesh(ctx: Any, *operands: Any) -> Sequence[Any]:
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    if isinstance(mesh, mesh_lib.Mesh):
        ctx.module_context.cached_primitive_lowerings[_MESH] = mesh
    return operands


_RECORD_MESH = new_primitive(
    "jaxccomp_record_mesh",
    abstract_eval=lambda *avals: (list(avals), set()),
    jvp=lambda primals, tangents: (_RECORD_MESH.bind(*primals), list(tangents)),
    transpose=lambda cotangents, *operands: list(cotangents),
    batcher=lambda axis_data, values, dims: (_RECORD_MESH.bind(*values), list(dims)),
    lowering=_keep_mesh,
)


@uses("lowering to jax.lax")
def lower_traced(
    ctx: Any, fun: Callable[..., Any], operands: Sequence[Any], *, ordered: bool
) -> Any:
    """Lower to the trace of ``fun``, which may use the named axes and operations with effects.

    Operations of ``fun`` get the source line of the operation that is lowered.
    ``ordered``: whether that operation has the ordered effect; ``fun`` need not have it.
    """
    # Types were checked when the primitive was bound.
    with config._check_vma(False), at_lowered_operation(ctx):
        rule = mlir.lower_fun(fun, multiple_results=True)
        avals = [invariant_aval(aval) for aval in ctx.avals_in]
        inner = ctx.replace(avals_in=avals, tokens_out=None)
        results = rule(inner, *operands)
    if ordered:
        ctx.set_tokens_out(inner.tokens_out)
    return results


@uses("lowering to jax.lax")
def lower_converted(
    ctx: Any,
    lower: Callable[[Any, Sequence[Any]], Any],
    operands: Sequence[Any],
    *,
    enter: Callable[..., Sequence[Any]],
    leave: Callable[..., Sequence[Any]],
    avals: Callable[[Sequence[Any]], Sequence[Any]],
) -> Any:
    """Lower in other dtypes: convert the operands, call ``lower``, convert the results back.

    Args:
      ctx: the lowering's context.
      lower: lowers in a context with the converted dtypes.
      operands: the operands' values.
      enter: converts operands.
      leave: converts results back.
      avals: maps shapes and dtypes of unconverted values to converted ones.
    """
    avals_in, avals_out = avals(ctx.avals_in), avals(ctx.avals_out)
    entered = lower_traced(ctx.replace(avals_out=avals_in), enter, operands, ordered=False)
    inner = ctx.replace(avals_in=avals_in, avals_out=avals_out, tokens_out=None)
    results = lower(inner, entered)
    if inner.tokens_out is not None:
        ctx.set_tokens_out(inner.tokens_out)
    return lower_traced(
        ctx.replace(avals_in=avals_out, tokens_out=None), leave, results, ordered=False
    )


@uses("FFI calls")
def lower_ffi(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    attributes: dict[str, Any],
    *,
    alias: str,
    kept: int = 0,
    ordered: bool,
) -> Any:
    """Lower to a call of an FFI target, which XLA neither drops nor merges with another.

    Exception: if XLA partitions the program over some axes, an unordered call has no side effect,
    since XLA cannot replicate side effects along these axes. XLA may then drop or merge the call,
    on all ranks alike.

    Args:
      ctx: the lowering's context.
      target: the target's name.
      operands: the operands' values; the context may have further ones, which are not passed.
      attributes: str, int or a sequence of int each.
      alias: "never"; "free": with k results, result i aliases operand i + k if that has its dtype
        and `is_free`, else operand i on the same conditions; "always": result i aliases operand i,
        so that a target that writes nothing passes its operands through.
      kept: how many operands at the end no result aliases, because the program reads them later:
        XLA would have to copy them.
      ordered: whether the call takes and returns a token of the ordered effect.
    """
    operands = tuple(operands)
    first = int(ordered)
    if ordered:
        operands = (ctx.tokens_in.get(ORDERED), *operands)
    shared = {"never": lambda _: False, "free": is_free, "always": lambda _: True}[alias]
    aliases: dict[int, int] = {}
    last = len(operands) - kept
    if alias != "free":
        last = min(last, first + len(ctx.avals_out))
    for i in reversed(range(first, last)) if ctx.avals_out else ():
        result = first + (i - first) % len(ctx.avals_out)
        alike = ctx.avals_in[i - first].dtype == ctx.avals_out[result - first].dtype
        if alike and shared(operands[i]) and result not in aliases.values():
            aliases[i] = result
    rule = jax.ffi.ffi_lowering(
        target,
        has_side_effect=ordered or not is_partly_automatic(ctx),
        operand_output_aliases=aliases,
        backend_config={key: _attribute(value) for key, value in attributes.items()},
    )
    token = (core.abstract_token,) * first
    avals_in = ctx.avals_in[: len(operands) - first]
    call_ctx = ctx.replace(avals_in=(*token, *avals_in), avals_out=(*token, *ctx.avals_out))
    results = list(rule(call_ctx, *operands))
    if ordered:
        ctx.set_tokens_out(mlir.TokenSet({ORDERED: results[0]}))
    return results[first:]


@uses("FFI calls")
def lower_effect(ctx: Any, target: str, attributes: dict[str, Any]) -> None:
    """Lower to a call of an FFI target without operands and results, beside other operations.

    Emits nothing where such a call could fail or be lost: in an exported program, which may run
    without the target, and if XLA partitions the program over some axes.
    """
    exported = getattr(ctx.module_context.lowering_parameters, "for_export", False)
    if not exported and not is_partly_automatic(ctx):
        alone = ctx.replace(avals_in=(), avals_out=())
        lower_ffi(alone, target, (), attributes, alias="never", ordered=False)


def _attribute(value: Any) -> Any:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, (int, np.integer)):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), int(value))
    return ir.DenseI64ArrayAttr.get(np.asarray(value, np.int64).reshape(-1))


@uses("reusable buffers")
def is_free(value: Any) -> bool:
    """Return whether ``value`` may be overwritten: a temporary, or a donated argument.

    A temporary may have other readers: XLA then copies it. XLA would always copy an argument that
    is not donated, which costs more than a new result. Within ``shard_map`` no argument counts as
    donated, because JAX lowers the mapped function before it marks the program's donated arguments.
    """
    value = value.maybe_downcast()
    if not isinstance(value, ir.BlockArgument):
        return True
    owner = value.owner.owner.operation
    if owner.name != "func.func" or "arg_attrs" not in owner.attributes:
        return False
    given = owner.attributes["arg_attrs"][value.arg_number]
    return "jax.buffer_donor" in given or "tf.aliasing_output" in given

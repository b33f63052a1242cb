"""All uses of JAX's private API, for jax 0.10 to 0.12; no other file may use it.

It hides what differs between JAX releases: how a primitive is made, the varying-axes types of
``shard_map``, and how a lowering finds its devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax._src import config as jax_config
from jax._src import core, dispatch, distributed, effects, linear_util, source_info_util
from jax._src.interpreters import ad, batching, mlir, partial_eval, pxla
from jax._src.lax import parallel
from jax._src.lib.mlir import ir
from jax._src.mesh import Mesh, get_abstract_mesh
from jax._src.shard_map import ShardMapTrace
from jax._src.sharding_impls import NamedSharding, ShardingContext, SPMDAxisContext
from jax.experimental import serialize_executable
from jax.extend.core import Literal, Primitive, jaxprs_in_params
from jax.sharding import PartitionSpec

AxisName = Hashable
Zero = ad.Zero

# Errors and locations name the caller's line, not ours.
source_info_util.register_exclusion(os.path.dirname(os.path.abspath(__file__)))


@dataclasses.dataclass(frozen=True)
class OrderedEffect(effects.Effect):
    """Keeps operations in program order: all of them share this one effect."""

    def __str__(self) -> str:
        return "jaxccomp order"


@dataclasses.dataclass(frozen=True)
class KeptEffect(effects.Effect):
    """Keeps operations whose results are unused, in any order."""

    def __str__(self) -> str:
        return "jaxccomp kept"


ORDERED = OrderedEffect()
KEPT = KeptEffect()


def _renew_failed_tokens() -> None:
    """Makes JAX drop a failed token once it has raised.

    JAX before 0.12 keeps it, so that every later ordered operation raises as well.
    """
    of_jax = dispatch.RuntimeTokenSet.get_token_input

    def get_token_input(self: Any, effect: Any, devices: Any) -> Any:
        try:
            return of_jax(self, effect, devices)
        except jax.errors.JaxRuntimeError:
            self.current_tokens.pop(effect, None)
            raise

    dispatch.RuntimeTokenSet.get_token_input = get_token_input


_renew_failed_tokens()

for _registry in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _registry.add_type(OrderedEffect)
    _registry.add_type(KeptEffect)
for _registry in (effects.ordered_effects, effects.shardable_ordered_effects):
    _registry.add_type(OrderedEffect)


# --- primitives -------------------------------------------------------------------------------


def new_primitive(
    name: str,
    *,
    abstract_eval: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any],
    batcher: Callable[..., Any],
    lowering: Callable[..., Any],
) -> Primitive:
    """Makes a primitive with several results; eager calls compile it, lowerings are not cached.

    Args:
      name: its name in a jaxpr.
      abstract_eval: ``(*avals, **params) -> (avals, effects)``.
      jvp: ``(primals, tangents, **params) -> (outputs, tangents)``.
      transpose: ``(cotangents, *operands, **params) -> cotangents of the operands``.
      batcher: ``(axis_data, values, dims, **params) -> (values, dims)``.
      lowering: ``(ctx, *operands, **params) -> results``, for every platform.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(partial(dispatch.apply_primitive, primitive))
    primitive.def_effectful_abstract_eval(abstract_eval)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.fancy_primitive_batchers[primitive] = batcher
    # A cached lowering would be shared between call sites, meshes and operands' owners.
    mlir.register_lowering(primitive, lowering, cacheable=False)
    return primitive


def runs_eagerly() -> bool:
    """Whether a primitive bound now runs at once; also true in an unjitted ``shard_map``."""
    return isinstance(core.trace_ctx.trace, (core.EvalTrace, ShardMapTrace))


def is_tracer(x: Any) -> bool:
    return isinstance(x, core.Tracer)


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape of a value or of an undefined primal."""
    return tuple(x.aval.shape if is_undefined(x) else x.shape)


def is_zero(x: Any) -> bool:
    return type(x) is ad.Zero


def is_undefined(x: Any) -> bool:
    return ad.is_undefined_primal(x)


def instantiate(x: Any) -> Any:
    """Makes an array of a symbolic zero; returns anything else unchanged."""
    return ad.instantiate_zeros(x)


def zero_tangent(x: Any) -> Any:
    """The symbolic zero tangent of a value (of dtype float0 for integers)."""
    return ad.p2tz(x)


def zero_cotangent(undefined: Any) -> Any:
    """The symbolic zero cotangent of an undefined primal."""
    return ad.Zero(undefined.aval.to_ct_aval())


# --- axes and types ---------------------------------------------------------------------------


def axes_in_scope() -> dict[AxisName, int]:
    """Names and sizes of the axes of shard_map, pmap and vmap around the caller."""
    return dict(core.get_axis_env().axis_sizes)


def checks_varying() -> bool:
    """Whether types say which axes a value varies over (``shard_map(check_vma=True)``)."""
    return bool(jax_config._check_vma.value)


def mesh_axis_names() -> tuple[AxisName, ...]:
    """The axes of the mesh around the caller, in the mesh's order."""
    return tuple(get_abstract_mesh().axis_names)


def all_manual(axes: Iterable[AxisName]) -> bool:
    """Whether every axis is one of shard_map's, not vmap's."""
    manual = get_abstract_mesh().manual_axes
    return all(axis in manual for axis in axes)


def varying(x: Any) -> frozenset[AxisName]:
    return core.typeof(x).mat.varying


def is_partial_sum(x: Any) -> bool:
    """Whether a value's type is unreduced or reduced over some axis, which only jax.lax takes."""
    mat = core.typeof(x).mat
    return bool(mat.unreduced or mat.reduced)


def vary(x: Any, axes: Iterable[AxisName]) -> Any:
    """``x`` with a type that varies over the manual axes among ``axes``."""
    missing = not_varying(x, axes)
    return core.pvary(x, missing) if missing else x


def not_varying(x: Any, axes: Iterable[AxisName]) -> tuple[AxisName, ...]:
    """The manual axes among ``axes`` over which the type of ``x`` does not vary."""
    if not checks_varying():
        return ()
    manual = get_abstract_mesh().manual_axes
    return tuple(a for a in axes if a in manual and a not in varying(x))


def result_aval(aval: Any, shape: Sequence[int], dropped: Iterable[AxisName], keep: slice) -> Any:
    """The type of a result: ``aval`` in another shape, no longer varying over ``dropped``.

    ``keep``: the dimensions of the operand that are the trailing dimensions of the result.
    """
    spec = tuple(aval.sharding.spec)[keep]
    spec = (None,) * (len(shape) - len(spec)) + spec
    mat = aval.mat.update(varying=aval.mat.varying - frozenset(dropped))
    sharding = NamedSharding(aval.sharding.mesh, PartitionSpec(*spec))
    return aval.update(shape=tuple(shape), sharding=sharding, manual_axis_type=mat)


def axis_effects(axes: Sequence[AxisName], name: str) -> set[Any]:
    """Checks that the axes exist and allow communication, and returns their effects."""
    parallel._check_axis_names(tuple(axes), name)
    return {core.NamedAxisEffect(axis) for axis in axes}


# --- jax.distributed --------------------------------------------------------------------------


def distributed_client() -> Any:
    """The client of jax.distributed's key-value store; None before jax.distributed.initialize()."""
    return distributed.global_state.client


def stored(client: Any, key: str, seconds: float) -> bytes | None:
    """The value of a key of that store; None if it has not been set within ``seconds``.

    Raises:
      jax.errors.JaxRuntimeError: when the store cannot be reached.
    """
    try:
        return client.blocking_key_value_get_bytes(key, max(int(seconds * 1000), 1))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error).split(":", 1)[0]:
            return None
        raise


# --- lowering ---------------------------------------------------------------------------------


def platforms(ctx: Any) -> tuple[str, ...]:
    return tuple(ctx.platforms or ctx.module_context.platforms)


def replica_groups(
    ctx: Any, axes: Sequence[AxisName], index_groups: Sequence[Sequence[int]] | None
) -> list[list[Any]] | None:
    """The devices of each group that communicates; None for a mesh without devices."""
    mesh = _mesh_of(ctx)
    if mesh is None:
        return None
    devices = list(mesh.devices.flat)
    places = pxla.axis_groups(SPMDAxisContext(mesh), axes)
    groups = [[devices[place] for place in group] for group in places]
    if index_groups is not None:
        groups = [[group[i] for i in indices] for group in groups for indices in index_groups]
    return groups


_MESH = ("jaxccomp", "mesh")


def _mesh_of(ctx: Any) -> Mesh | None:
    """The mesh of the lowering, with its devices; None if the devices are not known."""
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    if isinstance(mesh, Mesh):
        return mesh
    outer = ctx.module_context.cached_primitive_lowerings.get(_MESH)
    # A whole program has the same devices in the same order.
    known = mesh is not None and outer is not None and outer.shape_tuple == mesh.shape_tuple
    return outer if known else None


def axes_of_xla() -> frozenset[AxisName] | None:
    """The mesh's axes that are not manual here; None outside of ``shard_map``."""
    mesh = get_abstract_mesh()
    manual = frozenset(mesh.manual_axes)
    return frozenset(mesh.axis_names) - manual if manual else None


def tell_devices(tree: Any) -> Any:
    """``tree`` unchanged, for a ``shard_map`` within another.

    JAX lowers the inner one with a mesh without devices. The primitive bound here is lowered before
    its users, with the outer mesh, and stores that mesh for `replica_groups`.
    """
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, _TELL_DEVICES.bind(*leaves) if leaves else leaves)


def _keep_mesh(ctx: Any, *operands: Any) -> Sequence[Any]:
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    if isinstance(mesh, Mesh):
        ctx.module_context.cached_primitive_lowerings[_MESH] = mesh
    return operands


_TELL_DEVICES = new_primitive(
    "jaxccomp_tell_devices",
    abstract_eval=lambda *avals: (list(avals), set()),
    jvp=lambda primals, tangents: (_TELL_DEVICES.bind(*primals), list(tangents)),
    transpose=lambda cotangents, *operands: list(cotangents),
    batcher=lambda axis_data, values, dims: (_TELL_DEVICES.bind(*values), list(dims)),
    lowering=_keep_mesh,
)


def device_count(ctx: Any) -> int:
    """How many devices the program being lowered runs on."""
    context = ctx.module_context.axis_context
    if isinstance(context, SPMDAxisContext):
        return math.prod(context.mesh.axis_sizes)
    if isinstance(context, ShardingContext):
        return context.num_devices or 1
    return 1


def is_partly_automatic(ctx: Any) -> bool:
    """Whether XLA still partitions the program over some axis (shard_map with ``axis_names``)."""
    context = ctx.module_context.axis_context
    if not isinstance(context, SPMDAxisContext):
        return False
    automatic = set(context.mesh.axis_names) - set(context.manual_axes)
    return bool(context.manual_axes) and any(context.mesh.shape[a] > 1 for a in automatic)


def call_site_number(ctx: Any, participants: Hashable) -> int:
    """Numbers the calls between ``participants`` in the module that is being lowered.

    Calls are numbered in the order of the program's text. The numbers do not depend on shapes, by
    which XLA's schedule may differ between ranks, nor on calls with other participants. A function
    that is lowered once and called twice gets one number.
    """
    shared = ctx.module_context.cached_primitive_lowerings  # lives as long as the module
    key = ("jaxccomp", "call sites", participants)
    shared[key] = shared.get(key, -1) + 1
    return shared[key]


def program_name(ctx: Any) -> str:
    """JAX's name of the program that is being lowered: ``jit_step`` for a jitted ``step``."""
    return ir.StringAttr(ctx.module_context.module.operation.attributes["sym_name"]).value


def where(ctx: Any) -> str:
    """``file.py:41`` of the innermost user frame."""
    return _line(ctx.traceback)


def this_line() -> str:
    """The user's line that is being executed."""
    return _line(source_info_util.current().traceback)


def at_this_line(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose operations get the source line of this call.

    For branches: JAX traces them without the frames of the caller of `jax.lax.cond`.
    """
    traceback = source_info_util.current().traceback

    @functools.wraps(function)
    def told(*args: Any) -> Any:
        with source_info_util.user_context(traceback):
            return function(*args)

    return told


def lower_traced(
    ctx: Any, fun: Callable[..., Any], operands: Sequence[Any], *, ordered: bool
) -> Any:
    """Lowers to the trace of ``fun``, which may use the named axes and operations with effects.

    Staged operations get the source line of the operation that is lowered.
    ``ordered``: the operation has an ordered effect, even if nothing in ``fun`` has.
    """

    def plain(aval: Any) -> Any:
        nothing = frozenset()
        mat = aval.mat.update(varying=nothing, unreduced=nothing, reduced=nothing)
        return aval.update(manual_axis_type=mat)

    # Types were checked when the primitive was bound.
    with jax_config._check_vma(False), source_info_util.user_context(ctx.traceback):
        rule = mlir.lower_fun(fun, multiple_results=True)
        avals = [plain(aval) for aval in ctx.avals_in]
        inner = ctx.replace(avals_in=avals, tokens_out=None)
        results = rule(inner, *operands)
    if ordered:
        ctx.set_tokens_out(inner.tokens_out)
    return results


def lower_ffi(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    attributes: dict[str, Any],
    *,
    alias: str,
    ordered: bool,
) -> Any:
    """Lowers to a call of an FFI target, which XLA neither drops nor merges with another.

    Exception: if XLA partitions the program over some axes, the call has no side effect, since XLA
    cannot repeat side effects along these axes. XLA then drops or merges it on all ranks alike.

    Args:
      ctx: the lowering's context.
      target: the target's name.
      operands: the operands' values; the context may have further ones, which are not passed.
      attributes: str, int or a sequence of int each.
      alias: "never"; "free": with k results, result i aliases operand i + k, else operand i, if
        that saves a copy; "always": result i aliases operand i, so that a target that writes
        nothing passes its operands through.
      ordered: whether the call takes and returns a token of the ordered effect.
    """
    operands = tuple(operands)
    first = int(ordered)
    if ordered:
        operands = (ctx.tokens_in.get(ORDERED), *operands)
    shared = {"never": lambda _: False, "free": _is_free, "always": lambda _: True}[alias]
    aliases: dict[int, int] = {}
    last = len(operands) if alias == "free" else min(len(operands), first + len(ctx.avals_out))
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


def lower_converted(
    ctx: Any,
    lower: Callable[[Any, Sequence[Any]], Any],
    operands: Sequence[Any],
    *,
    enter: Callable[..., Sequence[Any]],
    leave: Callable[..., Sequence[Any]],
    avals: Callable[[Sequence[Any]], Sequence[Any]],
) -> Any:
    """Lowers by ``lower`` to what computes in other dtypes.

    Args:
      ctx: the lowering's context.
      lower: lowers in a context of those dtypes.
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


def _attribute(value: Any) -> Any:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, (int, np.integer)):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), int(value))
    return ir.DenseI64ArrayAttr.get(np.asarray(value, np.int64).reshape(-1))


def _is_free(value: Any) -> bool:
    """Whether ``value`` may be overwritten: a temporary, or a donated argument.

    XLA copies a temporary that has other readers. An argument that is not donated it would always
    copy; a new result is cheaper.
    """
    value = value.maybe_downcast()
    if not isinstance(value, ir.BlockArgument):
        return True
    owner = value.owner.owner.operation
    if owner.name == "sdy.manual_computation":
        return _is_free(owner.operands[value.arg_number])
    if owner.name != "func.func" or "arg_attrs" not in owner.attributes:
        return False
    given = owner.attributes["arg_attrs"][value.arg_number]
    return "jax.buffer_donor" in given or "tf.aliasing_output" in given


# --- jaxprs -----------------------------------------------------------------------------------


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr, closed or not, and its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The jaxprs that an equation calls, without custom derivative rules."""
    return list(jaxprs_in_params(eqn.params))


def is_literal(atom: Any) -> bool:
    return isinstance(atom, Literal)


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """The numbers of constants and of carry values of a ``scan`` equation."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(list(consts)), len(list(carry))


def is_sharding(value: Any) -> bool:
    """Whether a value is a sharding that a user gave to ``jax.jit``."""
    return isinstance(value, jax.sharding.Sharding)


@contextlib.contextmanager
def at_equation(eqn: Any) -> Iterator[None]:
    """Gives operations traced within the source line and the name stack of ``eqn``."""
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with (
        source_info_util.user_context(eqn.source_info.traceback, name_stack=stack),
        eqn.ctx.manager,
    ):
        yield


def scope_of(eqn: Any) -> str:
    """The name stack of an equation within its jaxpr."""
    return str(eqn.source_info.name_stack)


def line_of(eqn: Any) -> str:
    """``file.py:41`` of an equation's innermost user frame."""
    return _line(eqn.source_info.traceback)


def _line(traceback: Any) -> str:
    frame = source_info_util.user_frame(traceback)
    return "unknown" if frame is None else f"{os.path.basename(frame.file_name)}:{frame.start_line}"


def bind_again(eqn: Any, args: Sequence[Any]) -> list[Any]:
    """Stages an equation unchanged."""
    results = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]


def bind_with_rules(
    eqn: Any, args: Sequence[Any], change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> list[Any]:
    """Stages a ``custom_jvp`` or ``custom_vjp`` with ``change`` applied to function and rules."""
    params = eqn.primitive.get_bind_params(eqn.params)
    params["subfuns"] = tuple(_changed(each, change) for each in params["subfuns"])
    return list(eqn.primitive.bind(*args, **params))


def bind_checkpoint(eqn: Any, args: Sequence[Any], function: Callable[..., Any]) -> list[Any]:
    """Stages a ``checkpoint`` of another function with the same arguments and results."""
    jaxpr, consts = opened(jax.make_jaxpr(function)(*args))
    if consts:
        jaxpr = partial_eval.convert_constvars_jaxpr(jaxpr)
    return list(eqn.primitive.bind(*consts, *args, **{**eqn.params, "jaxpr": jaxpr}))


@linear_util.transformation2
def _changed(
    function: Callable[..., Any],
    change: Callable[[Callable[..., Any]], Callable[..., Any]],
    *args: Any,
) -> Any:
    return change(function)(*args)


# --- executables ------------------------------------------------------------------------------


def after_loading(call: Callable[[str], object]) -> None:
    """Registers ``call``, to be called after each load of a serialised executable.

    ``call`` gets the program's name, as of `program_name`; empty if it is not known.
    ``jax.monitoring`` reports compilations, but not these loads.
    """
    unpickler = serialize_executable._JaxPjrtUnpickler
    load = unpickler.persistent_load

    def load_and_tell(self: Any, pid: Any) -> Any:
        loaded = None
        try:
            loaded = load(self, pid)
        finally:
            if pid[0] == "exec":
                call(_name_of_executable(loaded))
        return loaded

    unpickler.persistent_load = load_and_tell


def _name_of_executable(executable: Any) -> str:
    try:
        return executable.hlo_modules()[0].name
    except (AttributeError, IndexError, jax.errors.JaxRuntimeError):
        return ""

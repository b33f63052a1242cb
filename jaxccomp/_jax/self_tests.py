"""A self-test for each hook: exercises what the package needs from JAX.

Each function raises if JAX behaves differently. `hooks` runs it in a thread of its own: traces,
tokens and contexts of the caller do not change the result.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxccomp._jax import (
    axes,
    equations,
    events,
    internals,
    lowering,
    primitives,
    source_lines,
)

Array = Any

_AXIS = "jaxccomp_axis"
_X = np.arange(4, dtype=np.float32).reshape(2, 2)


class Unexpected(Exception):
    """JAX behaves differently from what the package needs; the text says how."""


def _expect(condition: Any, problem: str) -> None:
    if not condition:
        raise Unexpected(problem)


def _expect_equal(what: str, found: Any, expected: Any) -> None:
    _expect(found == expected, f"{what} is {found!r} instead of {expected!r}")


def _identity(
    effects: Callable[[], set[Any]] = set,
    lower: Callable[..., Sequence[Any]] = lambda ctx, *operands: operands,
    seen: list[str] | None = None,
    result: Callable[[Any], Any] = lambda aval: aval,
) -> Any:
    """Create a primitive that returns its operands; rules append their names to ``seen``."""
    ran = [] if seen is None else seen

    def jvp(values: Sequence[Any], tangents: Sequence[Any]) -> Any:
        ran.append("jvp")
        tangents = [primitives.instantiate(each) for each in tangents]
        return primitive.bind(*values), primitive.bind(*tangents)

    def transpose(cotangents: Sequence[Any], *operands: Any) -> list[Any]:
        ran.append("transpose")
        return list(cotangents)

    def batcher(axis_data: Any, values: Sequence[Any], dims: Sequence[Any]) -> Any:
        ran.append("batcher")
        return primitive.bind(*values), list(dims)

    def lowered(ctx: Any, *operands: Any) -> Sequence[Any]:
        ran.append("lowering")
        return lower(ctx, *operands)

    primitive = primitives.new_primitive(
        "jaxccomp_self_test",
        abstract_eval=lambda *avals: ([*map(result, avals)], effects()),
        jvp=jvp,
        transpose=transpose,
        batcher=batcher,
        lowering=lowered,
    )
    return primitive


def _mapped(
    function: Callable[..., Any],
    mesh: Any = None,
    axis_names: frozenset[str] | None = None,
    check_vma: bool = True,
) -> Callable[..., Any]:
    """Map over an axis of size 1; the default mesh is abstract, so that tracing opens no device."""
    options = {} if axis_names is None else {"axis_names": set(axis_names)}
    return jax.shard_map(
        function,
        mesh=_abstract({_AXIS: 1}) if mesh is None else mesh,
        in_specs=PartitionSpec(_AXIS),
        out_specs=PartitionSpec(_AXIS),
        check_vma=check_vma,
        **options,
    )


def _abstract(sizes: dict[str, int]) -> AbstractMesh:
    kinds = (AxisType.Auto,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def _mesh(names: Sequence[str] = (_AXIS,)) -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape([1] * len(names)), names)


def _equations(function: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """Yield the equations of a function's jaxpr, outer ones first."""
    pending = [jax.make_jaxpr(function)(*args)]
    while pending:
        for eqn in equations.opened(pending.pop(0))[0].eqns:
            yield eqn
            pending += equations.inner_jaxprs(eqn)


def _user_program(text: str, **names: Any) -> dict[str, Any]:
    """Execute code under a user's file name, since source lines exclude this package's frames."""
    exec(compile(text, "/home/user/program.py", "exec"), names)
    return names


# --- tracing ----------------------------------------------------------------------------------


def primitives_() -> None:
    """All rules of a primitive run, and its lowering is not cached."""
    seen: list[str] = []
    probe = _identity(seen=seen)

    def function(x: Array) -> Array:
        return probe.bind(x)[0]

    x = np.float32(3)
    _expect_equal("the value of an eager call", float(function(x)), 3.0)
    _expect_equal("a derivative", float(jax.jit(jax.grad(function))(x)), 1.0)
    _expect_equal("the shape of a batch", jax.vmap(function)(_X).shape, (2, 2))
    _expect_equal("the set of rules that ran", {*seen}, {"lowering", "jvp", "transpose", "batcher"})
    seen.clear()
    jax.jit(lambda x: function(x) + function(x)).lower(x)
    _expect_equal("the number of lowerings of two equal calls", len(seen), 2)


def derivatives() -> None:
    """Rules can tell symbolic zeros and undefined primals from values."""
    found: dict[str, Any] = {}

    def jvp(values: Any, tangents: Any) -> Any:
        found["zeros"] = [primitives.is_zero(each) for each in tangents]
        found["shape"] = primitives.instantiate(tangents[1]).shape
        integer = primitives.zero_tangent(jnp.ones(2, int))
        found["dtype"] = primitives.aval_of(integer).dtype
        return probe.bind(*values), [tangents[0], primitives.zero_tangent(values[1])]

    def transpose(cotangents: Any, first: Any, second: Any) -> Any:
        found["undefined"] = [primitives.is_undefined(each) for each in (first, second)]
        found["shapes"] = [primitives.shape_of(each) for each in (first, second)]
        zero = primitives.zero_cotangent(first)
        found["cotangent"] = primitives.is_zero(zero), primitives.aval_of(first).shape
        return [primitives.instantiate(cotangents[0]), None]

    probe = primitives.new_primitive(
        "jaxccomp_self_test",
        abstract_eval=lambda *avals: ([*avals], set()),
        jvp=jvp,
        transpose=transpose,
        batcher=lambda axis_data, values, dims: (probe.bind(*values), list(dims)),
        lowering=lambda ctx, *operands: operands,
    )
    y = jnp.ones(3)
    jax.eval_shape(lambda x: jax.jvp(lambda x: probe.bind(x, y)[0], (x,), (x,)), _X)
    _expect_equal("the list of symbolic zero tangents", found.get("zeros"), [False, True])
    _expect_equal("the shape of an instantiated zero", found.get("shape"), (3,))
    _expect_equal("the tangent's dtype of an integer", found.get("dtype"), jax.dtypes.float0)
    transposed = jax.linear_transpose(lambda x: probe.bind(x, y)[0], _X)
    jax.eval_shape(transposed, _X)
    _expect_equal("the list of undefined primals", found.get("undefined"), [True, False])
    _expect_equal("the shapes of operands", found.get("shapes"), [(2, 2), (3,)])
    _expect_equal("the zero cotangent", found.get("cotangent"), (True, (2, 2)))


def _ordered() -> Any:
    def lower(ctx: Any, *operands: Any) -> Any:
        return lowering.lower_traced(ctx, lambda *xs: list(xs), operands, ordered=True)

    return _identity(lambda: {primitives.ORDERED}, lower)


def effects() -> None:
    """Control flow and transformations permit both effects, and keep unused operations."""
    seen: list[str] = []
    kept = _identity(lambda: {primitives.KEPT}, seen=seen)
    ordered = _ordered()

    def program(x: Array) -> Array:
        kept.bind(x)
        x = ordered.bind(x)[0]
        x = lax.scan(lambda carry, _: (ordered.bind(carry)[0], None), x, None, length=2)[0]
        x = lax.cond(x[0, 0] > 0, lambda x: ordered.bind(x)[0], lambda x: x, x)
        x = lax.while_loop(lambda x: x[0, 0] < 0, lambda x: kept.bind(x)[0], x)
        return jax.checkpoint(lambda x: kept.bind(x)[0])(x)

    result = jax.jit(program)(_X)
    _expect("lowering" in seen, "JAX has dropped an unused operation with an effect")
    _expect((np.asarray(result) == _X).all(), "ordered operations return other values")


class _FailedBuffer:
    """The token of an operation that fails after its call has returned."""

    def block_until_ready(self) -> None:
        raise jax.errors.JaxRuntimeError("on purpose")


def failed_tokens() -> None:
    """A failed token raises once; the next ordered operation works."""
    ordered = _ordered()
    call = jax.jit(lambda x: ordered.bind(x)[0])
    call(_X)
    tokens = primitives.dispatch.runtime_tokens.current_tokens
    _expect(primitives.ORDERED in tokens, "an ordered operation leaves no token")
    tokens[primitives.ORDERED] = primitives.core.Token(_FailedBuffer())
    try:
        call(_X)
    except jax.errors.JaxRuntimeError:
        pass
    else:
        raise Unexpected("a failed token raises no error in the next ordered operation")
    try:
        call(_X)
    except jax.errors.JaxRuntimeError as error:
        raise Unexpected("a failed token raises again in each ordered operation") from error


def eager_calls() -> None:
    """An eager call, also in a ``shard_map`` without jit, differs from a traced one."""
    found = []

    def function(x: Array) -> Array:
        found.append((primitives.runs_eagerly(), primitives.is_tracer(x)))
        return x

    mapped = _mapped(function, _mesh())
    for call in (function, jax.jit(function), mapped, jax.jit(mapped)):
        call(_X)
    expected = [(True, False), (False, True), (True, True), (False, True)]
    _expect_equal("the list of calls (eager, with a tracer)", found, expected)


def named_axes() -> None:
    """Named axes are known with sizes, kinds and effects."""
    found: dict[str, Any] = {}

    def function(x: Array) -> Array:
        found["sizes"] = axes.axes_in_scope()
        found["mesh"] = axes.mesh_axis_names()
        found["xla"] = axes.axes_of_xla()
        found["manual"] = axes.all_manual((_AXIS,)), axes.all_manual(("other",))
        found["effects"] = len(axes.axis_effects((_AXIS,), "jaxccomp"))
        with contextlib.suppress(NameError):
            axes.axis_effects(("missing",), "jaxccomp")
            raise Unexpected("an unknown axis raises no NameError")
        return x

    mesh = _abstract({_AXIS: 1, "other": 2})
    jax.eval_shape(_mapped(function, mesh, frozenset({_AXIS})), _X)
    _expect_equal("the axes in scope", found.get("sizes"), {_AXIS: 1})
    _expect_equal("the axes of the mesh", found["mesh"], (_AXIS, "other"))
    _expect_equal("the axes left to XLA", found["xla"], {"other"})
    _expect_equal("the manual axes", found["manual"], (True, False))
    _expect_equal("the number of effects of an axis", found["effects"], 1)
    _expect_equal("the axes left to XLA outside of shard_map", axes.axes_of_xla(), None)
    sizes = []
    jax.vmap(lambda x: sizes.append(axes.axes_in_scope()) or x, axis_name=_AXIS)(_X)
    _expect_equal("the axes of vmap", sizes, [{_AXIS: 2}])


def varying_types() -> None:
    """Types say over which axes a value varies, exactly if ``check_vma`` is on."""
    found: dict[str, Any] = {}
    dropping = _identity(
        result=lambda aval: axes.result_aval(aval, (1, 2, 2), {_AXIS}, slice(None))
    )

    def function(x: Array) -> Array:
        constant = jnp.ones((2, 2))
        found["checks"] = axes.checks_varying()
        found["mapped"] = axes.varying(x)
        found["missing"] = axes.not_varying(constant, (_AXIS,))
        found["varied"] = axes.varying(axes.vary(constant, (_AXIS,)))
        dropped = dropping.bind(x)[0]
        found["result"] = dropped.shape, axes.varying(dropped)
        found["partial"] = axes.is_partial_sum(x)
        found["invariant"] = axes.invariant_aval(primitives.aval_of(x)).mat.varying
        return x

    over, none = frozenset({_AXIS}), frozenset()
    jax.eval_shape(_mapped(function), _X)
    _expect_equal("check_vma", found.get("checks"), True)
    _expect_equal("the axes of a mapped operand", found["mapped"], over)
    _expect_equal("the axes missing from a constant", found["missing"], (_AXIS,))
    _expect_equal("the axes of a constant after pvary", found["varied"], over)
    _expect_equal("the type of a result", found["result"], ((1, 2, 2), none))
    _expect_equal("the type without axes", found["invariant"], none)
    _expect_equal("whether a mapped operand is a partial sum", found["partial"], False)
    inner = [eqn for eqn in _equations(_mapped(lambda x: x + x), _X) if eqn.primitive.name == "add"]
    _expect_equal("the axes in a jaxpr", [axes.varying_of(e.invars[0]) for e in inner], [over])
    jax.eval_shape(_mapped(function, check_vma=False), _X)
    _expect_equal("check_vma", (found["checks"], found["missing"]), (False, ()))


# --- lowering ---------------------------------------------------------------------------------


def lowering_context() -> None:
    """A lowering rule finds its platforms, program, devices, and number of calls."""
    found: list[Any] = []

    def lower(ctx: Any, *operands: Any) -> Any:
        number = lowering.call_site_number(ctx, "participants")
        name = lowering.program_name(ctx)
        found.append((number, lowering.platforms(ctx), name, lowering.device_count(ctx)))
        automatic.append(lowering.is_partly_automatic(ctx))
        avals = [*lowering.avals_in(ctx), *lowering.avals_out(ctx)]
        _expect_equal("the dtypes of a lowering", [each.dtype for each in avals], [_X.dtype] * 2)
        return operands

    automatic: list[bool] = []
    probe = _identity(lower=lower)

    def step(x: Array) -> Array:
        return probe.bind(probe.bind(x)[0])[0]

    platform = jax.default_backend()
    for x in (_X, _X[0]):  # numbers begin anew in each program
        jax.jit(step).lower(x)
    expected = [(number, (platform,), "jit_step", 1) for number in (0, 1)]
    _expect_equal("the context of a lowering", found, expected * 2)
    found.clear()
    mesh = _abstract({_AXIS: 1, "other": 2})
    step = _mapped(step, mesh, frozenset({_AXIS}))
    x = jax.ShapeDtypeStruct((2, 2), np.float32, sharding=NamedSharding(mesh, PartitionSpec()))
    jax.jit(step).trace(x).lower(lowering_platforms=(platform,))
    _expect_equal("the number of devices of a mesh", {each[-1] for each in found}, {2})
    _expect_equal("axes left to XLA, by call", automatic, [False] * 4 + [True] * 2)


def mesh_devices() -> None:
    """A collective finds its devices, also in a ``shard_map`` within another."""
    found: list[Any] = []

    def lower(ctx: Any, *operands: Any) -> Any:
        found.append(lowering.replica_groups(ctx, (_AXIS,), None))
        found.append(lowering.replica_groups(ctx, (_AXIS,), [[0]]))
        return operands

    probe = _identity(lower=lower)
    mesh = _mesh((_AXIS, "outer"))

    def outer(x: Array) -> Array:
        inner = jax.shard_map(
            lambda x: probe.bind(x)[0],
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            axis_names={_AXIS},
            check_vma=False,
        )
        return inner(lowering.record_mesh(x))

    nested = jax.shard_map(
        outer,
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        axis_names={"outer"},
        check_vma=False,
    )
    for program in (_mapped(lambda x: probe.bind(x)[0], mesh), nested):
        jax.jit(program).lower(_X)
    group = [[jax.devices()[0]]]
    _expect_equal("the devices of a group", found, [group] * 4)


def lowering_to_lax() -> None:
    """A rule can lower to functions in ``jax.lax``, also in other dtypes."""

    def double(ctx: Any, operands: Any) -> Any:
        return lowering.lower_traced(ctx, lambda x: [x + x], operands, ordered=False)

    def wide(ctx: Any, *operands: Any) -> Any:
        return lowering.lower_converted(
            ctx,
            double,
            operands,
            enter=lambda x: [x.astype(jnp.float32)],
            leave=lambda x: [x.astype(jnp.bfloat16)],
            avals=lambda avals: [aval.update(dtype=np.dtype("float32")) for aval in avals],
        )

    def summed(ctx: Any, *operands: Any) -> Any:
        run = lambda x: [lax.psum(x, _AXIS)]  # noqa: E731
        return lowering.lower_traced(ctx, run, operands, ordered=False)

    probe, total = _identity(lower=wide), _identity(lower=summed)
    result = jax.jit(lambda x: probe.bind(x)[0])(jnp.bfloat16(3))
    _expect_equal("a lowered sum", (float(result), result.dtype.name), (6.0, "bfloat16"))
    result = jax.jit(_mapped(lambda x: total.bind(x)[0], _mesh()))(_X)
    _expect((np.asarray(result) == _X).all(), "a lowered psum returns other values")


def ffi_calls() -> None:
    """A rule can lower to an FFI call with attributes, side effect, aliases and token."""
    attributes = {"text": "some text", "count": 7, "numbers": (1, 2)}

    def lower(ctx: Any, *operands: Any) -> Any:
        ordered = bool(ctx.tokens_in)
        return lowering.lower_ffi(
            ctx, "jaxccomp_self_test", operands, attributes, alias="always", ordered=ordered
        )

    for effect, operand in ((set, 0), (lambda: {primitives.ORDERED}, 1)):
        probe = _identity(effect, lower)
        text = jax.jit(lambda x, probe=probe: probe.bind(x)[0]).lower(_X).as_text()
        call = next((line for line in text.splitlines() if "@jaxccomp_self_test" in line), "")
        for part in (
            'text = "some text"',
            "count = 7 : i64",
            "numbers = array<i64: 1, 2>",
            "has_side_effect = true",
            f"operand_index = {operand}",
        ):
            _expect(part in call, f"the call lacks {part!r}: {call.strip()!r}")
        _expect_equal("whether the call has a token", "token" in call, bool(operand))


def reusable_buffers() -> None:
    """A rule can tell temporaries and donated arguments from arguments of the caller."""
    found: list[bool] = []

    def lower(ctx: Any, *operands: Any) -> Any:
        found.extend(map(lowering.is_free, operands))
        return operands

    probe = _identity(lower=lower)

    def function(x: Array, y: Array) -> Array:
        return sum(probe.bind(x, y, x + y))

    jax.jit(function, donate_argnums=0).lower(_X, _X)
    what = "the list of donated, given and temporary operands that are free"
    _expect_equal(what, found, [True, False, True])


def lines_of_the_user() -> None:
    """Operations have the user's source lines, not those of this package."""
    found: list[str] = []

    def lower(ctx: Any, *operands: Any) -> Any:
        found.append(source_lines.where(ctx))
        return operands

    probe = _identity(lower=lower)

    def bind(x: Array) -> Array:
        return probe.bind(x)[0]

    def bind_in_branch(x: Array) -> Array:
        branches = [source_lines.at_this_line(each) for each in (bind, bind)]
        return lax.cond(x[0, 0] > 0, *branches, x)

    program = _user_program(
        "def step(x):\n"
        "    with named_scope('inner'):\n"
        "        x = bind(x)\n"
        "    return bind_in_branch(x)\n"
        "line = this_line()\n",
        bind=bind,
        bind_in_branch=bind_in_branch,
        named_scope=jax.named_scope,
        this_line=source_lines.this_line,
    )
    _expect_equal("the line of an eager call", program["line"], "program.py:5")
    jax.jit(program["step"]).lower(_X)
    lines = ["program.py:3", "program.py:4", "program.py:4"]
    _expect_equal("the lines of operations", found, lines)
    eqn = next(_equations(program["step"], _X))
    _expect_equal("the line in a jaxpr", source_lines.line_of(eqn), "program.py:3")
    _expect_equal("the name stack in a jaxpr", source_lines.scope_of(eqn), "inner")

    def again(x: Array) -> Array:
        with source_lines.at_equation(eqn):
            return bind(x)

    copy = next(_equations(again, _X))
    about = source_lines.line_of(copy), source_lines.scope_of(copy)
    _expect_equal("the line and name stack of a copy", about, ("program.py:3", "inner"))


# --- jaxprs -----------------------------------------------------------------------------------


def collectives_in_jaxprs() -> None:
    """Each collective of ``jax.lax`` is found in a jaxpr, with its arguments."""
    zeros, sizes = np.zeros(1, np.int32), np.full(1, 2, np.int32)
    cases: dict[str, tuple[Callable[[Array], Array], dict[str, Any]]] = {
        "psum": (lambda x: lax.psum(x, _AXIS), {}),
        "all_gather": (
            lambda x: lax.all_gather(x, _AXIS, axis=1, tiled=True),
            {"axis": 1, "tiled": True},
        ),
        "psum_scatter": (
            lambda x: lax.psum_scatter(x, _AXIS, scatter_dimension=1, tiled=True),
            {"scatter_dimension": 1, "tiled": True},
        ),
        "all_to_all": (
            lambda x: lax.all_to_all(x, _AXIS, 0, 1, tiled=True),
            {"split_axis": 0, "concat_axis": 1},
        ),
        "ragged_all_to_all": (
            lambda x: lax.ragged_all_to_all(x, x, zeros, sizes, zeros, sizes, axis_name=_AXIS),
            {},
        ),
        "ppermute": (lambda x: lax.ppermute(x, _AXIS, [(0, 0)]), {"perm": ((0, 0),)}),
    }
    for check_vma in (True, False):
        for name, (call, expected) in cases.items():
            if name == "ragged_all_to_all" and check_vma:
                continue  # JAX has no such types for it

            def function(x: Array, call: Callable[[Array], Array] = call) -> Array:
                call(x)
                return x

            traced = list(_equations(_mapped(function, check_vma=check_vma), _X))
            found = [each for each in map(equations.collective_of, traced) if each is not None]
            _expect_equal(f"the collectives of {name}", [each.name for each in found], [name])
            arguments = dict(found[0].arguments)
            over = arguments.pop("axis_name")
            _expect((over if isinstance(over, tuple) else (over,)) == (_AXIS,), f"{name}: {over}")
            _expect_equal(f"the groups of {name}", arguments.pop("axis_index_groups", None), None)
            _expect_equal(f"the arguments of {name}", arguments, expected)
            invariant = check_vma and name == "psum"
            _expect_equal(f"whether {name} is invariant", found[0].invariant, invariant)
            if name == "psum_scatter":
                sizes_found = [
                    equations.group_size(e) for e in traced if equations.collective_of(e)
                ]
                _expect_equal("the ranks of psum_scatter", sizes_found, [1])
    gather = getattr(axes.parallel, "all_gather_invariant", None)
    if gather is not None:
        traced = _equations(_mapped(lambda x: x + gather(x, _AXIS, tiled=True)), _X)
        found = [each for each in map(equations.collective_of, traced) if each is not None]
        about = [(each.name, each.invariant) for each in found]
        _expect_equal("an invariant all_gather", about, [("all_gather", True)])
    twice = list(_equations(_mapped(lambda x: lax.psum(x, _AXIS) + lax.psum(2 * x, _AXIS)), _X))
    pair = [eqn for eqn in twice if equations.collective_of(eqn) is not None]
    _expect(len(pair) == 2 and equations.are_alike(*pair), "two equal psums are not alike")


@jax.custom_jvp
def _custom_jvp(x: Array) -> Array:
    return x + 1


@_custom_jvp.defjvp
def _custom_jvp_rule(primals: Any, tangents: Any) -> Any:
    return primals[0] + 1, tangents[0]


@jax.custom_vjp
def _custom_vjp(x: Array) -> Array:
    return x + 1


_custom_vjp.defvjp(lambda x: (x + 1, None), lambda _, ct: (ct,))


def functions_in_jaxprs() -> None:
    """Operations that call functions are found in a jaxpr, and can be staged again."""

    def first(function: Callable[..., Any], *names: str) -> Any:
        eqn = next((e for e in _equations(function, _X) if e.primitive.name in names), None)
        _expect(eqn is not None, f"JAX has no operation {' or '.join(names)}")
        return eqn

    def inner(x: Array) -> Array:
        return x + 1

    eqn = first(jax.jit(inner, donate_argnums=0, keep_unused=True), equations.JIT)
    jit = equations.jit_of(eqn)
    about = (jit.name, list(jit.donated), jit.keep_unused, jit.compiler_options)
    _expect_equal("the parameters of jit", about, ("inner", [True], True, {}))
    jax.eval_shape(jax.jit(inner, inline=jit.inline), _X)
    _expect_equal("the shardings of jit", (jit.in_shardings, jit.out_shardings), ([None], [None]))
    _expect_equal("the functions that jit calls", len(equations.inner_jaxprs(eqn)), 1)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    jit = equations.jit_of(first(jax.jit(inner, in_shardings=sharding), equations.JIT))
    _expect_equal("a sharding of jit", jit.in_shardings, [sharding])

    mapped = equations.shard_map_of(first(_mapped(inner), equations.SHARD_MAP))
    about = (mapped.manual_axes, mapped.check_vma, mapped.mesh.axis_names, len(mapped.in_specs))
    _expect_equal("the parameters of shard_map", about, ({_AXIS}, True, (_AXIS,), 1))

    def scanned(x: Array) -> Array:
        body = lambda carry, row: (carry + x[0], row)  # noqa: E731
        return lax.scan(body, x[0], x, reverse=True)[0]

    scan = equations.scan_of(first(scanned, equations.SCAN))
    about = (scan.const_count, scan.carry_count, scan.length, scan.reverse, scan.unroll)
    _expect_equal("the parameters of scan", about, (1, 1, 2, True, 1))

    def loop(x: Array) -> Array:
        return lax.while_loop(lambda y: y[0, 0] < x[0, 0], lambda y: y + x + x[0], x)

    loop_ = equations.while_of(first(loop, equations.WHILE))
    about = len(equations.opened(loop_.body_jaxpr)[0].outvars), loop_.cond_const_count > 0
    _expect_equal("the parameters of while", about, (1, True))
    eqn = first(lambda x: lax.cond(x[0, 0] > 0, inner, inner, x), equations.COND)
    _expect_equal("the branches of cond", len(equations.branches_of(eqn)), 2)

    eqn = first(jax.checkpoint(inner), *equations.CHECKPOINTS)
    _expect_equal(
        "the results of checkpoint",
        len(equations.opened(equations.checkpointed_of(eqn))[0].eqns),
        1,
    )
    constant = jnp.full((2, 2), 2.0)
    result = jax.jit(lambda x: equations.bind_checkpoint(eqn, [x], lambda x: [x + constant])[0])(_X)
    _expect((np.asarray(result) == _X + 2).all(), "a changed checkpoint returns other values")

    for function, name in (
        (_custom_jvp, equations.CUSTOM_JVP),
        (_custom_vjp, equations.CUSTOM_VJP),
    ):
        custom = first(function, name)
        again = jax.jit(lambda x, custom=custom: equations.bind_again(custom, [x])[0])(_X)
        _expect((np.asarray(again) == _X + 1).all(), f"{name} staged again: other values")
        calls: list[int] = []

        def change(rule: Callable[..., Any], calls: list[int] = calls) -> Callable[..., Any]:
            def changed(*args: Any) -> Any:
                calls.append(1)
                return rule(*args)

            return changed

        def staged(x: Array, custom: Any = custom, change: Any = change) -> Array:
            return equations.bind_with_rules(custom, [x], change)[0].sum()

        derivative = jax.jit(jax.grad(staged))(_X)
        _expect((np.asarray(derivative) == 1).all(), f"a changed {name} has another derivative")
        _expect(len(calls) > 0, f"no rule of a changed {name} was called")
    literals = [equations.is_literal(v) for v in first(inner, "add").invars]
    _expect_equal("the literals of an addition", literals, [False, True])


def values_unknown_in_traces() -> None:
    """JAX's errors for a shape that depends on values are recognised."""
    cases: dict[str, Callable[[Array, Array], Any]] = {
        "jnp.zeros(n)": lambda x, n: jnp.zeros((n,)),
        "x[:n]": lambda x, n: x[:n],
        "jnp.nonzero(x)": lambda x, n: jnp.nonzero(x),
        "x[x > 0]": lambda x, n: x[x > 0],
        "int(n)": lambda x, n: range(n),
        "x.reshape(n, -1)": lambda x, n: x.reshape(n, -1),
        "jnp.arange(n)": lambda x, n: jnp.arange(n),
        "np.asarray(x)": lambda x, n: np.asarray(x),
        "jnp.broadcast_to(x, (n, 2, 2))": lambda x, n: jnp.broadcast_to(x, (n, 2, 2)),
    }
    for name, case in cases.items():
        try:
            jax.eval_shape(case, _X, jnp.int32(1))
        except (IndexError, TypeError) as error:
            _expect(
                primitives.depends_on_values(error),
                f"the error of {name} is not recognised: {internals.reason_of(error)}",
            )
        else:
            raise Unexpected(f"{name} raises no error")


# --- events -----------------------------------------------------------------------------------


def _compiled() -> Any:
    def jaxccomp_self_test(x: Array) -> Array:
        return x + 1

    return jax.jit(jaxccomp_self_test).lower(_X).compile()


def compilation_events() -> None:
    """Each compilation is reported with the program's name, on the thread that compiles."""
    heard: list[tuple[str, int]] = []
    stop = events.on_compiled(lambda name: heard.append((_letters(name), threading.get_ident())))
    try:
        _compiled()
    finally:
        stop()
    _expect(heard, "a compilation is not reported")
    # The engine compares letters and digits: the event has "jit(step)", the program "jit_step".
    expected = (_letters("jit_jaxccomp_self_test"), threading.get_ident())
    _expect_equal("the report of a compilation", heard, [expected])


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name))


def loaded_executables() -> None:
    """Each load of a serialised executable is reported with the program's name."""
    serialised = events.serialize_executable.serialize(_compiled())
    heard: list[str] = []
    stop = events.on_loaded(heard.append)
    try:
        events.serialize_executable.deserialize_and_load(*serialised)
    finally:
        stop()
    _expect_equal("the list of programs reported as loaded", heard, ["jit_jaxccomp_self_test"])


def compiled_programs() -> None:
    """Each compilation passes on its executable, whose text has the collectives."""
    heard: list[tuple[Any, Sequence[Any]]] = []
    stop = events.on_program(lambda executable, devices: heard.append((executable, devices)))
    try:
        _compiled()
    finally:
        stop()
    _expect_equal("the number of compiled programs reported", len(heard), 1)
    executable, devices = heard[0]
    _expect_equal("the number of a program's devices", len(devices), 1)
    _expect_equal("the list of its collectives", events.collectives_of(executable, 1), [])


def callback_errors() -> None:
    """Exceptions in all three kinds of callbacks are reported."""

    def fail(x: Any) -> Any:
        raise LookupError("on purpose")

    result = jax.ShapeDtypeStruct(_X.shape, _X.dtype)
    calls: dict[str, Callable[[Array], Any]] = {
        "pure_callback": lambda x: jax.pure_callback(fail, result, x),
        "io_callback": lambda x: io_callback(fail, result, x),
        "debug.callback": lambda x: jax.debug.callback(fail, x),
    }
    for name, call in calls.items():
        heard: list[str] = []
        stop = events.on_callback_error(heard.append)
        try:
            with _unlogged(), contextlib.suppress(jax.errors.JaxRuntimeError):
                jax.block_until_ready(jax.jit(call)(_X))
                jax.effects_barrier()
        finally:
            stop()
        _expect_equal(f"the report of an exception in {name}", heard, ["LookupError: on purpose"])


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep tracebacks of callbacks that fail on purpose from the terminal."""

    def drop(record: logging.LogRecord) -> bool:
        return not record.exc_info

    loggers = [logging.getLogger(f"jax._src.{name}") for name in ("callback", "debugging")]
    for logger in loggers:
        logger.addFilter(drop)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(drop)


def profiles() -> None:
    """A profile has the begin and the end of each executed operation, and its clock is known."""
    step = jax.jit(lambda x: jnp.tanh(x @ x))
    step(_X).block_until_ready()
    before = time.monotonic_ns()
    with events.profiled() as executed:
        step(_X).block_until_ready()
    after = time.monotonic_ns()
    _expect(executed, "the list of executed operations is empty")
    for each in executed:
        _expect(
            before <= each.begin_ns <= each.end_ns <= after,
            f"the execution of {each.name} is from {each.begin_ns} to {each.end_ns}, outside of "
            f"the profile from {before} to {after}",
        )


def key_value_store() -> None:
    """The client of jax.distributed is found, and a missing key is no error."""
    client = events.distributed_client()
    _expect(client is None or hasattr(client, "key_value_set_bytes"), f"the client is {client!r}")
    library = internals.module("jaxlib._jax")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    service = library.get_distributed_runtime_service(address, 1)
    client = library.get_distributed_runtime_client(address, 0, init_timeout=10)
    client.connect()
    try:
        _expect_equal("the value of a missing key", events.stored(client, "key", 0.001), None)
        client.key_value_set_bytes("key", b"value")
        _expect_equal("the value of a key", events.stored(client, "key", 1), b"value")
    finally:
        client.shutdown()
        service.shutdown()

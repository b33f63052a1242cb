"""Primitives with their rules, effects, tokens of ordered operations, and symbolic zeros."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxccomp import errors
from jaxccomp._jax import internals
from jaxccomp._jax.internals import uses

ad = internals.module("jax._src.interpreters.ad")
batching = internals.module("jax._src.interpreters.batching")
core = internals.module("jax._src.core")
dispatch = internals.module("jax._src.dispatch")
effects = internals.module("jax._src.effects")
extend = internals.module("jax.extend.core")
mlir = internals.module("jax._src.interpreters.mlir")
shard_map = internals.module("jax._src.shard_map")

_Effect: Any = getattr(effects, "Effect", object)


@dataclasses.dataclass(frozen=True)
class OrderedEffect(_Effect):
    """Keeps operations in program order: all of them share this one effect."""

    def __str__(self) -> str:
        return "jaxccomp order"


@dataclasses.dataclass(frozen=True)
class KeptEffect(_Effect):
    """Keeps operations whose results are unused, in any order."""

    def __str__(self) -> str:
        return "jaxccomp kept"


ORDERED = OrderedEffect()
KEPT = KeptEffect()


def register_effects() -> None:
    """Permit both effects in all of JAX's transformations and control flow."""
    for registry in (
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
        effects.remat_allowed_effects,
    ):
        registry.add_type(OrderedEffect)
        registry.add_type(KeptEffect)
    for registry in (effects.ordered_effects, effects.shardable_ordered_effects):
        registry.add_type(OrderedEffect)


def drop_failed_tokens() -> None:
    """Make JAX drop a failed token once it has raised.

    JAX before 0.12 keeps a failed token, so that every later ordered operation raises as well.
    """
    if jax.__version_info__ >= (0, 12):
        return
    of_jax = dispatch.RuntimeTokenSet.get_token_input

    def get_token_input(self: Any, effect: Any, devices: Any) -> Any:
        try:
            return of_jax(self, effect, devices)
        except jax.errors.JaxRuntimeError:
            self.current_tokens.pop(effect, None)
            raise

    dispatch.RuntimeTokenSet.get_token_input = get_token_input


class _MissingPrimitive:
    """Placeholder for a primitive that could not be created; raises the error when bound."""

    def __init__(self, error: errors.JaxHookError) -> None:
        self._error = error

    def bind(self, *operands: Any, **params: Any) -> Any:
        raise self._error


def new_primitive(
    name: str,
    *,
    abstract_eval: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any],
    batcher: Callable[..., Any],
    lowering: Callable[..., Any],
) -> Any:
    """Create a primitive with a list of results. Eager calls compile; lowerings are not cached.

    Args:
      name: its name in a jaxpr.
      abstract_eval: ``(*avals, **params) -> (avals, effects)``.
      jvp: ``(primals, tangents, **params) -> (outputs, tangents)``.
      transpose: ``(cotangents, *operands, **params) -> cotangents of the operands``.
      batcher: ``(axis_data, values, dims, **params) -> (values, dims)``.
      lowering: ``(ctx, *operands, **params) -> results``, for every platform.
    """

    @uses("primitives")
    def make() -> Any:
        primitive = extend.Primitive(name)
        primitive.multiple_results = True
        primitive.def_impl(partial(dispatch.apply_primitive, primitive))
        primitive.def_effectful_abstract_eval(abstract_eval)
        ad.primitive_jvps[primitive] = jvp
        ad.primitive_transposes[primitive] = transpose
        batching.fancy_primitive_batchers[primitive] = batcher
        # A cached lowering would be shared between call sites and meshes, and between operands that
        # may and that may not be overwritten (`is_free`).
        mlir.register_lowering(primitive, lowering, cacheable=False)
        return primitive

    try:
        return make()
    except errors.JaxHookError as error:  # raised at the first use, not by ``import jaxccomp``
        return _MissingPrimitive(error)


@uses("eager calls")
def runs_eagerly() -> bool:
    """Return whether a primitive bound now executes at once: eagerly or in a bare ``shard_map``."""
    return isinstance(core.trace_ctx.trace, (core.EvalTrace, shard_map.ShardMapTrace))


@uses("eager calls")
def is_tracer(x: Any) -> bool:
    """Return whether ``x`` is a tracer instead of an array."""
    return isinstance(x, core.Tracer)


@uses("derivatives")
def aval_of(x: Any) -> Any:
    """Return the shape and dtype of an operand of an equation or of a transpose rule."""
    return x.aval


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of a value or of an undefined primal."""
    return tuple(aval_of(x).shape if is_undefined(x) else x.shape)


@uses("derivatives")
def is_zero(x: Any) -> bool:
    """Return whether a tangent or cotangent is a symbolic zero."""
    return type(x) is ad.Zero


@uses("derivatives")
def is_undefined(x: Any) -> bool:
    """Return whether a transpose rule must return a cotangent of this operand."""
    return ad.is_undefined_primal(x)


@uses("derivatives")
def instantiate(x: Any) -> Any:
    """Make an array of a symbolic zero; return anything else unchanged."""
    return ad.instantiate_zeros(x)


@uses("derivatives")
def zero_tangent(x: Any) -> Any:
    """Return the symbolic zero tangent of a value (of dtype float0 for integers)."""
    return ad.p2tz(x)


@uses("derivatives")
def zero_cotangent(undefined: Any) -> Any:
    """Return the symbolic zero cotangent of an undefined primal."""
    return ad.Zero(undefined.aval.to_ct_aval())


internals.at_import("effects", register_effects)
internals.at_import("failed tokens", drop_failed_tokens)


# JAX's errors for a shape that depends on values.
_DEPENDS_ON_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
# Texts of JAX's plain IndexError or TypeError for the same reason. All errors that name a tracer
# have the last text (JAX 0.12). Each other text is of one function.
_TEXTS_OF_DEPENDENCE = (
    "must be static integers",
    "sequences of concrete values",
    "must have static start/stop/step",
    "was not available in Python because",
)


def depends_on_values(error: Exception) -> bool:
    """Return whether JAX has raised ``error`` because a shape depends on values."""
    known = any(text in str(error) for text in _TEXTS_OF_DEPENDENCE)
    return known or isinstance(error, _DEPENDS_ON_VALUES)

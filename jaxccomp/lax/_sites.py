"""Finds the collectives in a jaxpr, and stages operations of `jaxccomp.lax` in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from jaxccomp import _compat
from jaxccomp._api.error_feedback import allreduce_with_feedback, reduce_scatter_with_feedback
from jaxccomp._api.lax_reductions import blocks, merge, names_of, psum
from jaxccomp.lax import _operations as operations
from jaxccomp.lax._rules import Site

Params = dict[str, Any]


def _psum(params: Params, operands: list[Any], how: dict[str, Any]) -> list[Any]:
    groups = params.get("axis_index_groups")
    return psum(operands, params["axes"], axis_index_groups=groups, **how)


def _all_gather(params: Params, operands: list[Any], how: dict[str, Any]) -> list[Any]:
    return operations.all_gather(
        operands,
        params["axis_name"],
        axis_index_groups=params.get("axis_index_groups"),
        axis=params["all_gather_dimension"],
        tiled=params["tiled"],
        **how,
    )


def _all_gather_invariant(params: Params, operands: list[Any], how: dict[str, Any]) -> list[Any]:
    return _all_gather(params, operands, {**how, "to": "invarying"})


def _psum_scatter(params: Params, operands: list[Any], how: dict[str, Any]) -> list[Any]:
    return operations.psum_scatter(
        operands,
        params["axis_name"],
        scatter_dimension=params["scatter_dimension"],
        axis_index_groups=params["axis_index_groups"],
        tiled=params["tiled"],
        **how,
    )


def _all_to_all(params: Params, operands: list[Any], how: dict[str, Any]) -> list[Any]:
    return operations.all_to_all(
        operands,
        params["axis_name"],
        params["split_axis"],
        params["concat_axis"],
        axis_index_groups=params["axis_index_groups"],
        tiled=True,  # otherwise jax.lax has reshaped the operand before
        **how,
    )


def _ragged_all_to_all(params: Params, operands: list[Any], how: dict[str, Any]) -> list[Any]:
    result = operations.ragged_all_to_all(
        *operands,
        axis_name=params["axis_name"],
        axis_index_groups=params["axis_index_groups"],
        **how,
    )
    return [result]


def _ppermute(params: Params, operands: list[Any], how: dict[str, Any]) -> list[Any]:
    return operations.ppermute(operands, params["axis_name"], params["perm"], **how)


def _psum_with_feedback(
    params: Params, operands: list[Any], residuals: list[Any], how: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    groups = params.get("axis_index_groups")
    how = {**how, "axis_name": params["axes"], "axis_index_groups": groups}
    return allreduce_with_feedback(operands, residuals, "sum", **how)


def _psum_scatter_with_feedback(
    params: Params, operands: list[Any], residuals: list[Any], how: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    dimension, tiled = params["scatter_dimension"], params["tiled"]

    def rows(leaves: list[Any]) -> list[Any]:
        return [blocks("psum_scatter", x, dimension, params["axis_size"], tiled) for x in leaves]

    def joined(x: Any) -> Any:
        x = jnp.moveaxis(x, 0, dimension)
        return merge(x, dimension) if tiled else x

    how = {**how, "axis_name": params["axis_name"]}
    how["axis_index_groups"] = params["axis_index_groups"]
    reduced, left = reduce_scatter_with_feedback(rows(operands), rows(residuals), "sum", **how)
    return reduced, [joined(x) for x in left]


# By the name of JAX's primitive: the name in jax.lax, and the function that stages the replacement.
_TABLE: dict[str, tuple[str, Callable[[Params, list[Any], dict[str, Any]], list[Any]]]] = {
    "psum": ("psum", _psum),
    "psum_invariant": ("psum", _psum),
    "all_gather": ("all_gather", _all_gather),
    "all_gather_invariant": ("all_gather", _all_gather_invariant),
    "reduce_scatter": ("psum_scatter", _psum_scatter),
    "all_to_all": ("all_to_all", _all_to_all),
    "ragged_all_to_all": ("ragged_all_to_all", _ragged_all_to_all),
    "ppermute": ("ppermute", _ppermute),
}


# By the same names: the functions that stage the replacement with error feedback.
_WITH_FEEDBACK = {
    "psum": _psum_with_feedback,
    "psum_invariant": _psum_with_feedback,
    "reduce_scatter": _psum_scatter_with_feedback,
}


def site_of(eqn: Any, scope: str) -> Site | None:
    """Return the collective of an equation with the name stack ``scope``; None if it is none."""
    if eqn.primitive.name not in _TABLE:
        return None
    aval = eqn.invars[0].aval
    name, _ = _TABLE[eqn.primitive.name]
    axes = names_of(eqn.params["axes" if name == "psum" else "axis_name"])
    named = tuple(axis for axis in axes if not isinstance(axis, int))
    if not named:
        return None
    return Site(name, named, aval.shape, aval.dtype, scope, _compat.line_of(eqn))


def stage(eqns: Sequence[Any], operands: list[list[Any]], how: dict[str, Any]) -> list[list[Any]]:
    """Stage collectives joined by `are_one` as one operation; return the results of each."""
    _, function = _TABLE[eqns[0].primitive.name]
    results = iter(function(eqns[0].params, [x for each in operands for x in each], how))
    return [[next(results) for _ in eqn.outvars] for eqn in eqns]


def has_feedback(eqn: Any) -> bool:
    """Return whether a collective is a sum, so that error feedback can send losses later."""
    return eqn.primitive.name in _WITH_FEEDBACK


def stage_with_feedback(
    eqns: Sequence[Any], operands: list[list[Any]], residuals: list[Any], how: dict[str, Any]
) -> tuple[list[list[Any]], list[Any]]:
    """`stage` with error feedback; return the results of each, and all operands' residuals."""
    function = _WITH_FEEDBACK[eqns[0].primitive.name]
    values = [x for each in operands for x in each]
    reduced, left = function(eqns[0].params, values, residuals, how)
    results = iter(reduced)
    return [[next(results) for _ in eqn.outvars] for eqn in eqns], left


def are_one(first: Any, second: Any) -> bool:
    """Return whether two successive collectives are parts of one, such as leaves of a pytree."""
    return (
        first.primitive is second.primitive
        and first.primitive.name != "ragged_all_to_all"
        and first.params == second.params
        and _compat.line_of(first) == _compat.line_of(second)
    )

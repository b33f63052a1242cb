"""Finds the collectives in a jaxpr, and stages operations of `jaxccomp.lax` in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from jaxccomp import _jax
from jaxccomp._api.error_feedback import allreduce_with_feedback, reduce_scatter_with_feedback
from jaxccomp._api.lax_reductions import blocks, merge, names_of, psum
from jaxccomp.lax import _operations as operations
from jaxccomp.lax._rules import Site

Arguments = dict[str, Any]


def _ragged_all_to_all(operands: list[Any], **arguments: Any) -> list[Any]:
    return [operations.ragged_all_to_all(*operands, **arguments)]


def _psum_with_feedback(
    eqn: Any,
    arguments: Arguments,
    operands: list[Any],
    residuals: list[Any],
    how: dict[str, Any],
) -> tuple[list[Any], list[Any]]:
    return allreduce_with_feedback(operands, residuals, "sum", **{**how, **arguments})


def _psum_scatter_with_feedback(
    eqn: Any,
    arguments: Arguments,
    operands: list[Any],
    residuals: list[Any],
    how: dict[str, Any],
) -> tuple[list[Any], list[Any]]:
    arguments = dict(arguments)
    dimension, tiled = arguments.pop("scatter_dimension"), arguments.pop("tiled")
    size = _jax.group_size(eqn)

    def rows(leaves: list[Any]) -> list[Any]:
        return [blocks("psum_scatter", x, dimension, size, tiled) for x in leaves]

    def joined(x: Any) -> Any:
        x = jnp.moveaxis(x, 0, dimension)
        return merge(x, dimension) if tiled else x

    how = {**how, **arguments}
    reduced, left = reduce_scatter_with_feedback(rows(operands), rows(residuals), "sum", **how)
    return reduced, [joined(x) for x in left]


# By the name in jax.lax: the function that stages the replacement.
_TABLE: dict[str, Callable[..., list[Any]]] = {
    "psum": psum,
    "all_gather": operations.all_gather,
    "psum_scatter": operations.psum_scatter,
    # Tiled: for the untiled form, jax.lax reshapes the operand first.
    "all_to_all": functools.partial(operations.all_to_all, tiled=True),
    "ragged_all_to_all": _ragged_all_to_all,
    "ppermute": operations.ppermute,
}


# By the same names: the functions that stage the replacement with error feedback.
_WITH_FEEDBACK = {"psum": _psum_with_feedback, "psum_scatter": _psum_scatter_with_feedback}


def site_of(eqn: Any, scope: str) -> Site | None:
    """Return the collective of an equation with the name stack ``scope``; None if it is none."""
    collective = _jax.collective_of(eqn)
    if collective is None:
        return None
    axes = names_of(collective.arguments["axis_name"])
    named = tuple(axis for axis in axes if not isinstance(axis, int))
    if not named:
        return None
    aval = _jax.aval_of(eqn.invars[0])
    return Site(collective.name, named, aval.shape, aval.dtype, scope, _jax.line_of(eqn))


def stage(eqns: Sequence[Any], operands: list[list[Any]], how: dict[str, Any]) -> list[list[Any]]:
    """Stage collectives joined by `are_one` as one operation; return the results of each."""
    collective = _jax.collective_of(eqns[0])
    assert collective is not None
    arguments = dict(collective.arguments)
    if collective.name == "all_gather" and collective.invariant:
        arguments["to"] = "invarying"
    function = _TABLE[collective.name]
    results = iter(function([x for each in operands for x in each], **arguments, **how))
    return [[next(results) for _ in eqn.outvars] for eqn in eqns]


def has_feedback(eqn: Any) -> bool:
    """Return whether a collective is a sum, so that error feedback can send losses later."""
    collective = _jax.collective_of(eqn)
    return collective is not None and collective.name in _WITH_FEEDBACK


def stage_with_feedback(
    eqns: Sequence[Any], operands: list[list[Any]], residuals: list[Any], how: dict[str, Any]
) -> tuple[list[list[Any]], list[Any]]:
    """`stage` with error feedback; return the results of each, and all operands' residuals."""
    collective = _jax.collective_of(eqns[0])
    assert collective is not None
    function = _WITH_FEEDBACK[collective.name]
    values = [x for each in operands for x in each]
    reduced, left = function(eqns[0], collective.arguments, values, residuals, how)
    results = iter(reduced)
    return [[next(results) for _ in eqn.outvars] for eqn in eqns], left


def are_one(first: Any, second: Any) -> bool:
    """Return whether two successive collectives can be one operation: leaves of a pytree."""
    return (
        _jax.are_alike(first, second)
        and not _is_ragged(first)
        and _jax.line_of(first) == _jax.line_of(second)
    )


def _is_ragged(eqn: Any) -> bool:
    collective = _jax.collective_of(eqn)
    return collective is not None and collective.name == "ragged_all_to_all"

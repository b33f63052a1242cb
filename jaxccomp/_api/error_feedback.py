"""Reduction with error feedback: what a lossy codec lost travels with the next values."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _compat, codecs, errors
from jaxccomp._api.arguments import REDUCE_OPS, check_varies, make_call
from jaxccomp._api.options import Options, operation
from jaxccomp._api.pytree import apply, as_array

Array = Any
T = TypeVar("T")

_REDUCTIONS = ("sum", "mean")
_START = "Start with jax.tree.map(jax.numpy.zeros_like, x)."


@operation
def allreduce_with_feedback(
    x: T, residual: T, op: str = "mean", **options: Unpack[Options]
) -> tuple[T, T]:
    """Reduces ``x`` plus what was lost before, and gives what is lost now.

    This rank contributes ``p = x + residual``. What the codec loses of it,
    ``p - decode(encode(p))``, is the new residual; values that this rank merges itself, raw, lose
    nothing. Where it encodes what it has merged, for all or for the next rank of a ring, it also
    keeps what that loses: as much as its next contribution needs to make up for it. So over a
    sequence of steps nothing is lost, with any algorithm: the results add up to the reduction of
    all ``x``, less that of what the last residuals hold (Seide et al. 2014; Karimireddy et al.
    2019; Tang et al. 2019 for what is lost after merging). Where what is lost is not finite (a
    gradient that overflowed, say), the result shows it and the residual is 0, so that a bad step
    does not spoil those after.

    On the wire: as `allreduce` of ``x + residual``. Along an axis of ``vmap`` nothing travels, and
    nothing is lost. It has no derivative.

    Args:
      x: pytree of arrays of any shape, the same on all ranks. Leaves that are not floating are
        reduced as `allreduce` does.
      residual: a pytree like ``x``: zeros at first, then what the last call gave. Instead of leaves
        that are not floating it may have None; whatever is there comes back as it is.
      op: "sum" or "mean".

    Returns:
      ``(reduced, residual)``: what ``allreduce(x + residual)`` gives, the same on all ranks (under
      ``check_vma``, of invariant type), and this rank's new residual.

    Example:
      >>> grads, residual = jaxccomp.allreduce_with_feedback(            # doctest: +SKIP
      ...     grads, residual, codec="onebit")
    """
    return _with_feedback("allreduce", x, residual, op, options)


@operation
def reduce_scatter_with_feedback(
    x: T, residual: T, op: str = "mean", **options: Unpack[Options]
) -> tuple[T, T]:
    """Gives each rank its row of what `allreduce_with_feedback` reduces, and what is lost now.

    The sharded half of `allreduce_with_feedback`, for gradients whose optimizer's state is divided
    among the ranks (ZeRO, Rajbhandari et al. 2020; with quantised reduce-scatter ZeRO++, Wang et
    al. 2023, which keeps no residual). This rank contributes ``p = x + residual``. What the codec
    loses of each row of it that travels, ``p - decode(encode(p))``, is the new residual; around a
    ring, where a rank encodes partial sums, what it loses of those. So over a sequence of steps
    nothing is lost, with any algorithm: the results add up to the reduction of all ``x``, less that
    of what the last residuals hold. Where what is lost is not finite, the result shows it and the
    residual is 0.

    On the wire: as `reduce_scatter` of ``x + residual``, each rank sends n - 1 blocks. Each value
    is coded once, but around a ring n - 1 times. Along an axis of ``vmap`` nothing travels, and
    nothing is lost. It has no derivative.

    Args:
      x: pytree of arrays of shape ``(n, *s)``, the same on all ranks. Leaves that are not floating
        are reduced as `reduce_scatter` does.
      residual: a pytree like ``x``: zeros at first, then what the last call gave. Instead of leaves
        that are not floating it may have None; whatever is there comes back as it is.
      op: "sum" or "mean".

    Returns:
      ``(reduced, residual)``: what ``reduce_scatter(x + residual)`` gives, of shape ``s``, and this
      rank's new residual, of the shape ``(n, *s)``. The error bound of a step's result is the
      codec's, of each rank's values, added up or averaged.

    Example:
      >>> shards, residual = jaxccomp.reduce_scatter_with_feedback(      # doctest: +SKIP
      ...     rows_of_gradients, residual, codec="int4")
    """
    return _with_feedback("reduce_scatter", x, residual, op, options)


def check_op(name: str, op: str) -> None:
    """Raises for a reduction in which nothing that was lost can be made up for later."""
    if op not in _REDUCTIONS:
        hint = ""
        if op in REDUCE_OPS:
            hint = (
                "What a codec loses can only be added to the next values where they are added up."
            )
        raise errors.unknown(f"op of {name}:", op, _REDUCTIONS, hint)


def _with_feedback(collective: str, x: T, residual: T, op: str, options: Options) -> tuple[T, T]:
    name = f"{collective}_with_feedback"
    check_op(name, op)
    reduction = make_call(collective, op=op, **options)
    check_varies(reduction, x)
    leaves, treedef = jax.tree.flatten(x)
    leaves = [as_array(name, leaf) for leaf in leaves]
    residuals = _like(name, leaves, treedef, residual)
    coded = [i for i, leaf in enumerate(leaves) if _is_coded(leaf)]
    exact = [i for i, leaf in enumerate(leaves) if not _is_coded(leaf)]
    if codecs.is_lossless(options.get("codec")):
        results = apply(reduction, [leaves[i] + residuals[i] for i in coded])
        lost = [jnp.zeros_like(leaves[i]) for i in coded]
    else:
        pairs = [_vary_alike(leaves[i], residuals[i]) for i in coded]
        carries = reduction.replace(feedback=True, carries=True)
        results, lost = apply(carries, [x for x, _ in pairs], [each for _, each in pairs])
    results += apply(reduction, [leaves[i] for i in exact])
    reduced = dict(zip(coded + exact, results, strict=True))
    kept = dict(zip(coded, lost, strict=True))
    return (
        jax.tree.unflatten(treedef, [reduced[i] for i in range(len(leaves))]),
        jax.tree.unflatten(treedef, [kept.get(i, each) for i, each in enumerate(residuals)]),
    )


def _like(name: str, leaves: list[Array], treedef: Any, residual: Any) -> list[Any]:
    """The residual of each leaf, checked to be of its shape and dtype where it is floating."""
    residuals = flatten_residual(name, treedef, residual, _START)
    return [_checked(name, leaf, each) for leaf, each in zip(leaves, residuals, strict=True)]


def flatten_residual(name: str, treedef: Any, residual: Any, advice: str) -> list[Any]:
    """What a residual has in place of each leaf of the values; raises where it is no such tree."""
    try:
        return treedef.flatten_up_to(residual)
    except ValueError as error:
        raise errors.InvalidArgumentError(
            f"{name}: the residual must be a pytree like the values, {treedef}, not "
            f"{jax.tree.structure(residual)} ({error}). {advice}"
        ) from None


def _checked(name: str, leaf: Array, residual: Any) -> Any:
    if not _is_coded(leaf):
        return residual
    given = as_array(name, residual)
    if given.shape != leaf.shape or given.dtype != leaf.dtype:
        raise errors.InvalidArgumentError(
            f"{name}: the residual of a leaf {leaf.dtype.name}{list(leaf.shape)} must have its "
            f"shape and dtype, not {given.dtype.name}{list(given.shape)}. {_START}"
        )
    return given


def _vary_alike(x: Array, residual: Array) -> tuple[Array, Array]:
    """Both with a type that varies over the axes over which either does, as their sum has."""
    axes = _compat.varying(x) | _compat.varying(residual)
    return _compat.vary(x, axes), _compat.vary(residual, axes)


def _is_coded(leaf: Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))

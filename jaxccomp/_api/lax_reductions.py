"""The arguments of `jaxccomp.lax` and its reductions: psum, pmean, pmax, pmin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp import _jax, errors
from jaxccomp._api.arguments import AxisName, Groups, axes_of, make_call, rank_in
from jaxccomp._api.options import How, parallel
from jaxccomp._api.pytree import apply, as_array, is_float0, map_values
from jaxccomp._primitives import wide_sums
from jaxccomp.codecs import is_raw

# --- Arguments ------------------------------------------------------------------------------------


def names_of(axis_name: AxisName) -> tuple[Any, ...]:
    """Return ``axis_name`` as a tuple."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def has_partial_sums(x: Any) -> bool:
    """Return whether a leaf has a type that only jax.lax supports (unreduced or reduced)."""
    return any(map(_jax.is_partial_sum, jax.tree.leaves(x)))


def only_raw(name: str, how: How) -> None:
    """Raise for codecs and backends in calls that jax.lax runs."""
    back = how.get("cotangent_codec", "same")
    coded = not is_raw(how.get("codec")) or (back != "same" and not is_raw(back))
    if coded or how.get("backend", "auto") not in ("auto", "xla"):
        raise errors.InvalidArgumentError(
            f"{name}: values of a type that is unreduced or reduced over an axis are passed to "
            f"jax.lax, which has neither codecs nor backend={how.get('backend', 'native')!r}."
        )


def dimension_of(name: str, what: str, dimension: int, rank: int) -> int:
    """Return ``dimension`` counted from the front; raise unless it is one of ``rank``."""
    if not -rank <= dimension < rank:
        raise errors.InvalidArgumentError(
            f"{name}: {what}={dimension} is out of range for {rank} dimensions."
        )
    return dimension % rank


def blocks(name: str, x: Any, dimension: int, size: int, tiled: bool) -> Any:
    """Return ``x`` with one block per rank along a new first dimension."""
    dimension = dimension_of(name, "the dimension to split", dimension, x.ndim)
    length = x.shape[dimension]
    if length % size if tiled else length != size:
        relation = "a multiple of" if tiled else "equal to"
        raise errors.InvalidArgumentError(
            f"{name}: dimension {dimension} of shape {x.shape} must be {relation} the number of "
            f"ranks, {size}."
        )
    if tiled:
        x = x.reshape(*x.shape[:dimension], size, length // size, *x.shape[dimension + 1 :])
    return jnp.moveaxis(x, dimension, 0)


def merge(x: Any, dimension: int) -> Any:
    """Return ``x`` with ``dimension`` and the next one merged."""
    merged = x.shape[dimension] * x.shape[dimension + 1]
    return x.reshape(*x.shape[:dimension], merged, *x.shape[dimension + 2 :])


def rank_of(rank: int, size: int) -> int:
    """Return a checked rank of a permutation; negative ranks count from the end."""
    return rank_in("ppermute", "rank", rank + size if -size <= rank < 0 else rank, size)


def ragged_table(name: str, value: Any, size: int) -> Any:
    """Return offsets or sizes as int32 of shape (ranks, slices per rank)."""
    value = as_array("ragged_all_to_all", value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise errors.InvalidArgumentError(
            f"ragged_all_to_all {name} must be integer type, not {value.dtype}."
        )
    if value.ndim != 1 or not value.shape[0] or value.shape[0] % size:
        raise errors.InvalidArgumentError(
            f"ragged_all_to_all {name} must have one dimension, with one entry for each of the "
            f"{size} ranks or a multiple, not shape {value.shape}."
        )
    return value.astype(np.int32).reshape(size, -1)


# --- Reductions -----------------------------------------------------------------------------------


@parallel
def psum(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups | None = None,
    **how: Unpack[How],
) -> Any:
    """Returns the sum over an axis, as ``jax.lax.psum``; bool is converted to int32 first.

    On the wire: between one and two times the values per rank, depending on the algorithm.

    Args:
      x: pytree of arrays or numbers of any shape.
      axis_name: one axis or a tuple of them; integers are dimensions of ``x``.
      axis_index_groups: lists of indices along the axis that sum among themselves.

    Returns:
      Same shapes, without the dimensions that ``axis_name`` lists.

    Example:
      >>> jaxccomp.lax.psum(grads, "data", codec="bf16")                 # doctest: +SKIP
    """
    leaves = jax.tree.leaves(x)
    if not any(_jax.is_tracer(leaf) or is_float0(leaf) for leaf in leaves):
        # jax.lax.psum multiplies constants by the axis size: no communication.
        if names := tuple(axis for axis in names_of(axis_name) if not isinstance(axis, int)):
            axes_of("psum", names)
        return jax.lax.psum(x, axis_name, axis_index_groups=axis_index_groups)
    x = map_values(lambda leaf: _counted(as_array("psum", leaf)), x)
    return _reduce("sum", jnp.sum, jax.lax.psum, x, axis_name, axis_index_groups, how)


@parallel
def pmean(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups | None = None,
    **how: Unpack[How],
) -> Any:
    """Returns the mean over an axis, as ``jax.lax.pmean``; integers give floating results.

    On the wire: as `psum`.

    Args:
      x: as for `psum`.
      axis_name: as for `psum`.
      axis_index_groups: as for `psum`.

    Returns:
      Same shapes, without the dimensions that ``axis_name`` lists.

    Example:
      >>> jaxccomp.lax.pmean(loss, "data")                               # doctest: +SKIP
    """
    leaves = jax.tree.leaves(x)
    if axis_index_groups is None and any(map(_may_overflow, leaves)) and all(map(_divides, leaves)):
        return _reduce("mean", jnp.mean, jax.lax.pmean, x, axis_name, None, how)
    total = psum(x, axis_name, axis_index_groups=axis_index_groups, **how)
    count = jax.lax.psum(1, axis_name, axis_index_groups=axis_index_groups)
    return map_values(lambda leaf: leaf / count, total)


@parallel
def pmax(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups | None = None,
    **how: Unpack[How],
) -> Any:
    """Returns the maximum over an axis, as ``jax.lax.pmax``; NaN wins; no derivative.

    On the wire: as `psum`.

    Args:
      x: as for `psum`.
      axis_name: as for `psum`.
      axis_index_groups: as for `psum`.

    Returns:
      Same shapes, without the dimensions that ``axis_name`` lists.

    Example:
      >>> jaxccomp.lax.pmax(jnp.abs(x).max(), "data")                    # doctest: +SKIP
    """
    return _reduce("max", jnp.max, jax.lax.pmax, x, axis_name, axis_index_groups, how)


@parallel
def pmin(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups | None = None,
    **how: Unpack[How],
) -> Any:
    """Returns the minimum over an axis, as ``jax.lax.pmin``; NaN wins; no derivative.

    On the wire: as `psum`.

    Args:
      x: as for `psum`.
      axis_name: as for `psum`.
      axis_index_groups: as for `psum`.

    Returns:
      Same shapes, without the dimensions that ``axis_name`` lists.

    Example:
      >>> jaxccomp.lax.pmin(x, "data")                                   # doctest: +SKIP
    """
    return _reduce("min", jnp.min, jax.lax.pmin, x, axis_name, axis_index_groups, how)


def _reduce(
    op: str,
    over_dimensions: Callable[..., Any],
    of_jax: Callable[..., Any],
    x: Any,
    axis_name: AxisName,
    groups: Groups | None,
    how: How,
) -> Any:
    """Reduce locally over the dimensions in ``axis_name`` and between ranks over its names."""
    axes = names_of(axis_name)
    dimensions = tuple(axis for axis in axes if isinstance(axis, int))
    names = tuple(axis for axis in axes if not isinstance(axis, int))
    if dimensions:
        if groups is not None:
            raise ValueError("axis_index_groups only supported for sums over just named axes")
        x = map_values(lambda leaf: over_dimensions(leaf, axis=dimensions).astype(leaf.dtype), x)
    if not names:
        return x
    if has_partial_sums(x):
        only_raw(of_jax.__name__, how)
        return of_jax(x, names, axis_index_groups=groups)
    call = make_call(
        "allreduce",
        of_jax.__name__,
        axis_name=names,
        axis_index_groups=groups,
        op=op,
        **how,
    )
    return apply(call, x)


def _may_overflow(leaf: Any) -> bool:
    """Return whether a sum may overflow the dtype although the mean does not."""
    dtype = getattr(leaf, "dtype", jnp.float32)
    return _jax.is_tracer(leaf) and (wide_sums.is_half(dtype) or wide_sums.is_small(dtype))


def _divides(leaf: Any) -> bool:
    return _jax.is_tracer(leaf) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _counted(leaf: Any) -> Any:
    return leaf.astype(jnp.int32) if leaf.dtype == jnp.bool_ else leaf

"""Checks and conversions of jax.lax's arguments, for `jaxccomp.lax`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp import _jax, errors
from jaxccomp._api.arguments import AxisName, rank_in
from jaxccomp._api.options import How
from jaxccomp._api.pytree import as_array
from jaxccomp.codecs import is_raw


def names_of(axis_name: AxisName) -> tuple[Any, ...]:
    """Return ``axis_name`` as a tuple."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def has_partial_sums(x: Any) -> bool:
    """Return whether a leaf has a type that only jax.lax supports (unreduced or reduced)."""
    return any(map(_jax.is_partial_sum, jax.tree.leaves(x)))


def only_raw(name: str, how: How) -> None:
    """Raise for codecs and backends on calls that are passed on to jax.lax."""
    back = how.get("cotangent_codec", "same")
    coded = not is_raw(how.get("codec")) or (back != "same" and not is_raw(back))
    if coded or how.get("backend", "auto") not in ("auto", "xla"):
        raise errors.InvalidArgumentError(
            f"{name}: values of a type that is unreduced or reduced over an axis are handed to "
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
            f"ragged_all_to_all {name} must have one dimension, with as many entries as the "
            f"{size} ranks or a multiple, not shape {value.shape}."
        )
    return value.astype(np.int32).reshape(size, -1)

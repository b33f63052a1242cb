"""Steps that count as a whole or not at all.

A step is bad if one of its results is not finite. Reductions give all ranks the same results, so
all ranks find the same steps bad, and no message is needed for that. In a bad step all floating
results are NaN and the state stays as it was: nothing has been delivered, so a residual must not
say that it has.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

Array = Any


def all_finite(tree: Any) -> Array:
    """Return whether all floating leaves are finite, as a scalar."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return functools.reduce(
        jnp.logical_and,
        [_is_finite(leaf).all() for leaf in leaves if _is_inexact(leaf)],
        jnp.ones((), bool),
    )


def whole_step(results: Any, new: Any, old: Any, also: Any = ()) -> tuple[Any, Any]:
    """Return a step's results and state; in a bad step NaN and the state before.

    Args:
      results: a pytree that is the same on all ranks.
      new: the state after the step.
      old: the state before, a pytree like ``new``; its dtypes are kept.
      also: a pytree of values that must be finite too, the same on all ranks.
    """
    finite = all_finite((results, also))
    return show(finite, results), jax.tree.map(functools.partial(_kept, finite), new, old)


def show(finite: Array, results: Any) -> Any:
    """Return the results; NaN for all floating values unless ``finite``."""

    def shown(x: Array) -> Array:
        x = jnp.asarray(x)
        return jnp.where(finite, x, jnp.full_like(x, jnp.nan)) if _is_inexact(x) else x

    return jax.tree.map(shown, results)


def _kept(finite: Array, after: Array, before: Array) -> Array:
    before = jnp.asarray(before)
    after = after if after.dtype == before.dtype else after.astype(before.dtype)
    return jnp.where(finite, after, before)


def _is_finite(x: Array) -> Array:
    # Not all platforms have is_finite of types of a byte.
    return jnp.isfinite(x.astype(jnp.float32) if x.dtype.itemsize == 1 else x)


def _is_inexact(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))

"""Makes a step atomic: its results and new state are valid together, or it has no effect.

A step is bad if one of its results is not finite. Reductions give all ranks the same results, so
all ranks find the same steps bad without a message. In a bad step all floating results are NaN and
the state does not change: a new residual would count values as delivered that were not.
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
    """Return a step's results and new state; in a bad step NaN and the old state.

    Args:
      results: a pytree that is the same on all ranks.
      new: the state after the step.
      old: the state before the step, a pytree like ``new``; the state keeps its dtypes.
      also: a pytree of values that must be finite too, the same on all ranks.
    """
    finite = all_finite((results, also))
    return show(finite, results), jax.tree.map(functools.partial(_kept, finite), new, old)


def show(finite: Array, results: Any) -> Any:
    """Return the results; unless ``finite``, all floating values are NaN."""

    def shown(x: Array) -> Array:
        x = jnp.asarray(x)
        return jnp.where(finite, x, jnp.full_like(x, jnp.nan)) if _is_inexact(x) else x

    return jax.tree.map(shown, results)


def _kept(finite: Array, after: Array, before: Array) -> Array:
    before = jnp.asarray(before)
    after = after if after.dtype == before.dtype else after.astype(before.dtype)
    return jnp.where(finite, after, before)


def _is_finite(x: Array) -> Array:
    # Not all platforms have is_finite for one-byte types.
    return jnp.isfinite(x.astype(jnp.float32) if x.dtype.itemsize == 1 else x)


def _is_inexact(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))

"""PowerSGD: gradients as products of two thin matrices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import errors
from jaxccomp._api.arguments import check_dense, check_options
from jaxccomp._api.error_feedback import check_residual_dtype, flatten_residual, whole_step
from jaxccomp._api.options import Options, operation
from jaxccomp.ops import allreduce
from jaxccomp.optim._states import PowerSGDState, check_state, load_optax, zeros_of_rank

if TYPE_CHECKING:
    import optax

Array = Any


@operation
def powersgd(
    rank: int = 2,
    min_ratio: float = 2.0,
    seed: int = 0,
    residual_dtype: str | None = "float32",
    **options: Unpack[Options],
) -> optax.GradientTransformation:
    """Replaces each rank's gradients by a low-rank approximation of their mean over all ranks.

    ``M`` is a gradient plus its residual, as a matrix whose columns are the last dimension. All
    ranks hold the same basis ``Q``. The mean of ``M Q`` over the ranks, made orthonormal, is ``P``;
    the mean of ``transpose(M) P`` is the new ``Q``. The result is ``P transpose(Q)`` with the new
    ``Q``, and this rank's next residual is ``M`` minus the result. Both messages are sums, so no
    rank decodes in between (Vogels, Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient
    Compression for Distributed Optimization", algorithms 1 and 2, with warm start).

    On the wire: two calls of `jaxccomp.allreduce`. A matrix of m rows and n columns takes
    ``rank * (m + n)`` values instead of ``m * n``. The first call also sends uncompressed leaves.

    Args:
      rank: the rank of the approximation.
      min_ratio: the minimum compression ratio. Leaves below this ratio, leaves of fewer than two
        dimensions and leaves that are not floating are sent uncompressed.
      seed: the seed of the first bases; the same on all ranks.
      residual_dtype: as for `allreduce_gradients`.

    Returns:
      An ``optax.GradientTransformation`` whose state is a `PowerSGDState`; it goes first in a
      chain.

    Example:
      >>> optimizer = optax.chain(jaxccomp.optim.powersgd(rank=4),         # doctest: +SKIP
      ...                         optax.sgd(0.1, momentum=0.9))
    """
    optax = load_optax()
    given: dict[str, Any] = options  # type: ignore[assignment]
    if "least_ratio" in given:  # min_ratio in version 0.1
        errors.warn_renamed("powersgd(least_ratio=)", "min_ratio=")
        min_ratio = given.pop("least_ratio")
    if rank < 1:
        raise errors.InvalidArgumentError(f"powersgd: rank must be at least 1, not {rank}.")
    check_options("allreduce", op="mean", **options)
    check_residual_dtype("powersgd", residual_dtype)

    def is_split(leaf: Array) -> bool:
        shape = jnp.shape(leaf)
        if len(shape) < 2 or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            return False
        rows, columns = math.prod(shape[:-1]), shape[-1]
        return rows * columns >= min_ratio * rank * (rows + columns)

    def init(params: Any) -> PowerSGDState:
        check_dense("powersgd", params)
        leaves, treedef = jax.tree.flatten(params)
        split = [is_split(leaf) for leaf in leaves]
        keys = jax.random.split(jax.random.key(seed), max(1, len(leaves)))
        bases = [
            jax.random.normal(key, (leaf.shape[-1], rank), jnp.float32) if yes else None
            for key, leaf, yes in zip(keys, leaves, split, strict=True)
        ]
        own = zeros_of_rank(leaves, options.get("axis_name"), residual_dtype)
        residuals = [each if yes else None for each, yes in zip(own, split, strict=True)]
        return PowerSGDState(treedef.unflatten(bases), treedef.unflatten(residuals))

    def update(updates: Any, state: PowerSGDState, params: Any = None) -> tuple[Any, PowerSGDState]:
        del params
        check_state("powersgd", PowerSGDState, state, updates, options.get("axis_name"))
        leaves, treedef = jax.tree.flatten(updates)
        advice = "It is what init(params) made."
        bases = flatten_residual("powersgd", treedef, state.basis, advice)
        residuals = flatten_residual("powersgd", treedef, state.residual, advice)
        split = [i for i, basis in enumerate(bases) if basis is not None]
        whole = [i for i, basis in enumerate(bases) if basis is None]
        matrices = {i: _matrix(leaves[i]) + _matrix(residuals[i]) for i in split}
        first = [matrices[i] @ bases[i] for i in split]
        reduced = allreduce([*first, *(leaves[i] for i in whole)], "mean", **options)
        for i, leaf in zip(whole, reduced[len(split) :], strict=True):
            leaves[i] = leaf
        columns = [_orthonormal(each) for each in reduced[: len(split)]]
        second = [matrices[i].T @ each for i, each in zip(split, columns, strict=True)]
        second = allreduce(second, "mean", **options) if split else []
        for i, left, right in zip(split, columns, second, strict=True):
            shape, dtype = leaves[i].shape, leaves[i].dtype
            decoded = (left @ right.T).astype(dtype)
            # Includes the error of rounding the product to the leaf's dtype.
            residuals[i] = (matrices[i] - decoded.astype(jnp.float32)).reshape(shape)
            leaves[i], bases[i] = decoded.reshape(shape), right
        after = PowerSGDState(treedef.unflatten(bases), treedef.unflatten(residuals))
        return whole_step(treedef.unflatten(leaves), after, state)

    return optax.GradientTransformation(init, update)


def _matrix(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1]).astype(jnp.float32)


def _orthonormal(columns: Array) -> Array:
    """Modified Gram-Schmidt. A column that depends on earlier columns becomes zero."""
    done: list[Array] = []
    for i in range(columns.shape[1]):
        column = columns[:, i]
        before = jnp.linalg.norm(column)
        for each in done:
            column = column - jnp.dot(each, column) * each
        norm = jnp.linalg.norm(column)
        # The rest of a dependent column is rounding error: do not normalise it.
        scale = jnp.where(norm > 1e-6 * before, 1 / jnp.where(norm > 0, norm, 1), 0)
        done.append(column * scale)
    return jnp.stack(done, axis=1)

"""Reductions with error feedback: the error of a lossy codec is added to the next values."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _jax, codecs, errors
from jaxccomp._api.arguments import REDUCE_OPS, check_varies, make_call
from jaxccomp._api.options import Options, operation
from jaxccomp._api.pytree import apply, as_array
from jaxccomp._call import Call
from jaxccomp._primitives.composed import EngineExchanger

# --- Whole steps: results and new state are valid together, or the step has no effect -------------
# A step is bad if one of its results is not finite. All ranks get the same results of a reduction,
# so all find the same steps bad without a message. In a bad step all floating results are NaN and
# the state does not change: a new residual would treat undelivered values as delivered.

Array = Any


def all_finite(tree: Any) -> Array:
    """Return whether all floating leaves are finite, as a scalar."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return functools.reduce(
        jnp.logical_and,
        [_is_finite(leaf) for leaf in leaves if _is_inexact(leaf)],
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
    # 0 * x is NaN if x is infinite or NaN. On CPUs XLA sums at the speed of memory, and takes twice
    # as long for jnp.isfinite(x).all(). Not all platforms multiply one-byte types.
    return jnp.sum((x.astype(jnp.float32) if x.dtype.itemsize == 1 else x) * 0) == 0


def _is_inexact(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


# --- Operations -----------------------------------------------------------------------------------

T = TypeVar("T")

_REDUCTIONS = ("sum", "mean")
_START = "Start with jax.tree.map(lambda x: jax.numpy.zeros_like(x, dtype='float32'), x)."


@operation
def allreduce_with_feedback(
    x: T, residual: T, op: str | None = None, **options: Unpack[Options]
) -> tuple[T, T]:
    """Reduce ``x`` plus the residual of the last call; return the new residual too.

    This rank contributes ``p = x + residual``. The new residual is the encoding error,
    ``p - decode(encode(p))``; values that this rank merges raw have no error. If this rank encodes
    merged values, for all ranks or for the next rank of a ring, the residual also includes this
    second error, scaled so that the rank's next contribution compensates for it. So no values are
    lost over a sequence of steps, with any algorithm: the sum of the results is the reduction of
    all ``x``, minus the reduction of the last residuals (Seide et al. 2014; Karimireddy et al.
    2019; Tang et al. 2019 for errors after merging).

    A step is bad if a value of the reduction is not finite, for example because a rank's gradient
    has overflowed. Then all floating results are NaN on all ranks, and the residual does not
    change. The old residual stays in memory until the results are known.

    A leaf and its residual are added, encoded and reduced in the wider of their dtypes. The
    residual also has the error of rounding the result to the leaf's dtype.

    On the wire: as `allreduce` of ``x + residual``. Along an axis of ``vmap`` values are reduced
    without a codec, and new residuals are zero. The operation has no derivative.

    Args:
      x: pytree of arrays of any shape, the same on all ranks. Leaves that are not floating are
        reduced as by `allreduce`.
      residual: a pytree like ``x``: zeros at first, then the residual of the last call. Its leaves
        may have another floating dtype, and keep it: use float32 for bfloat16 and float16, which
        round a small value away when it is added to a large one. For leaves of ``x`` that are not
        floating, the residual is returned unchanged and may be None.
      op: "sum" or "mean". Without it, "mean", with a warning: version 0.3 requires it.

    Returns:
      ``(reduced, residual)``: the result of ``allreduce(x + residual)``, the same on all ranks
      (under ``check_vma``, of invariant type), and this rank's new residual.

    Example:
      >>> grads, residual = jaxccomp.allreduce_with_feedback(            # doctest: +SKIP
      ...     grads, residual, "mean", codec="onebit")
    """
    return _with_feedback("allreduce", x, residual, _given("allreduce", op), options)


@operation
def reduce_scatter_with_feedback(
    x: T, residual: T, op: str | None = None, **options: Unpack[Options]
) -> tuple[T, T]:
    """Reduce-scatter ``x`` plus the residual of the last call; return the new residual too.

    The sharded form of `allreduce_with_feedback`, for gradients with optimizer state divided among
    the ranks (ZeRO, Rajbhandari et al. 2020; with quantised reduce-scatter ZeRO++, Wang et al.
    2023, which keeps no residual). This rank contributes ``p = x + residual``. The new residual is
    the encoding error ``p - decode(encode(p))`` of each row that is sent; in a ring, where a rank
    encodes partial sums, the error of the partial sums. So no values are lost over a sequence of
    steps, with any algorithm: the sum of the results is the reduction of all ``x``, minus the
    reduction of the last residuals.

    If a value of ``x`` is not finite, this rank contributes NaN to all rows: all floating results
    are NaN on all ranks, and no rank changes its residual. If a sum of finite values is not finite,
    only the rank that receives this row gets NaN.

    On the wire: as `reduce_scatter` of ``x + residual``: each rank sends n - 1 blocks. Each value
    is encoded once; in a ring n - 1 times. Along an axis of ``vmap`` values are reduced without a
    codec, and new residuals are zero. The operation has no derivative.

    Args:
      x: pytree of arrays of shape ``(n, *s)``, the same on all ranks. Leaves that are not floating
        are reduced as by `reduce_scatter`.
      residual: a pytree like ``x``: zeros at first, then the residual of the last call. Its leaves
        may have another floating dtype, and keep it: use float32 for bfloat16 and float16, which
        round a small value away when it is added to a large one. For leaves of ``x`` that are not
        floating, the residual is returned unchanged and may be None.
      op: "sum" or "mean". Without it, "mean", with a warning: version 0.3 requires it.

    Returns:
      ``(reduced, residual)``: the result of ``reduce_scatter(x + residual)``, of shape ``s``, and
      this rank's new residual, of shape ``(n, *s)``. The error bound of a result is the sum or mean
      of the codec's bounds for the values of each rank.

    Example:
      >>> shards, residual = jaxccomp.reduce_scatter_with_feedback(      # doctest: +SKIP
      ...     rows_of_gradients, residual, "mean", codec="int4")
    """
    return _with_feedback("reduce_scatter", x, residual, _given("reduce_scatter", op), options)


def _given(collective: str, op: str | None) -> str:
    """Return ``op``; without it "mean" with a warning, because other operations have "sum"."""
    if op is None:
        errors.warn_renamed(f"{collective}_with_feedback without op=", 'op="mean"', stacklevel=4)
        return "mean"
    return op


def check_op(name: str, op: str) -> None:
    """Raise unless the reduction is linear (sum, mean), so that later steps add lost values."""
    if op not in _REDUCTIONS:
        hint = ""
        if op in REDUCE_OPS:
            hint = (
                "Error feedback needs a sum or a mean: it adds a codec's error to the next values."
            )
        raise errors.unknown(f"op of {name}:", op, _REDUCTIONS, hint)


def allreduce_in_a_step(x: T, residual: T, op: str, options: Options) -> tuple[T, T]:
    """As `allreduce_with_feedback`, but a bad step has non-finite results and an invalid residual.

    The caller must call `whole_step`, for the residual together with its own state. So results and
    residuals are read only once.
    """
    return _with_feedback("allreduce", x, residual, op, options, whole=False)


def _with_feedback(
    collective: str, x: T, residual: T, op: str, options: Options, *, whole: bool = True
) -> tuple[T, T]:
    name = f"{collective}_with_feedback"
    check_op(name, op)
    reduction = make_call(collective, op=op, **options)
    check_varies(reduction, x)
    leaves, treedef = jax.tree.flatten(x)
    leaves = [as_array(name, leaf) for leaf in leaves]
    residuals = _like(name, leaves, treedef, residual)
    floating = [i for i, leaf in enumerate(leaves) if _is_floating(leaf)]
    exact = [i for i, leaf in enumerate(leaves) if not _is_floating(leaf)]
    values, before = ([each[i] for i in floating] for each in (leaves, residuals))
    pairs = list(map(_alike, values, before))
    if collective == "reduce_scatter":
        # A rank gets only one row: a value that is not finite must make all rows NaN, so that all
        # ranks find the step bad.
        finite = all_finite([x + each for x, each in pairs])
        values = [show(finite, x) for x in values]
        pairs = list(map(_alike, values, before))
    if codecs.is_lossless(options.get("codec")):
        sums = [x + each for x, each in pairs]
        sent = [x.astype(like.dtype) for x, like in zip(sums, values, strict=True)]
        results = apply(reduction, sent)
        lost = [rounding_error(x, like.dtype) for x, like in zip(sums, values, strict=True)]
    else:
        adds_residual = reduction.replace(feedback=True, adds_residual=True)
        # The engine adds float32 residuals to half types, so these need no conversion here.
        sent = [
            _vary_alike(value, each)[0] if _widens(value, each) else x
            for value, (x, each) in zip(values, pairs, strict=True)
        ]
        results, lost = apply(adds_residual, sent, [each for _, each in pairs])
        rounded = [
            _rounded(reduction, result, each, like.dtype)
            for like, result, each in zip(values, results, lost, strict=True)
        ]
        results, lost = [x for x, _ in rounded], [each for _, each in rounded]
    if whole:
        results, lost = whole_step(results, lost, before)
    results += apply(reduction, [leaves[i] for i in exact])
    reduced = dict(zip(floating + exact, results, strict=True))
    kept = dict(zip(floating, lost, strict=True))
    return (
        jax.tree.unflatten(treedef, [reduced[i] for i in range(len(leaves))]),
        jax.tree.unflatten(treedef, [kept.get(i, each) for i, each in enumerate(residuals)]),
    )


def _like(name: str, leaves: list[Array], treedef: Any, residual: Any) -> list[Any]:
    """Return the residual of each leaf; check its shape, and that it is floating if the leaf is."""
    residuals = flatten_residual(name, treedef, residual, _START)
    return [_checked(name, leaf, each) for leaf, each in zip(leaves, residuals, strict=True)]


def residual_dtype_of(dtype: Any, residual_dtype: str | None) -> Any:
    """Return the residual's dtype for a leaf of ``dtype``: the wider of both."""
    dtype = jnp.dtype(dtype)
    narrow = residual_dtype is not None and dtype.itemsize < jnp.dtype(residual_dtype).itemsize
    return jnp.dtype(residual_dtype) if narrow else dtype


def check_residual_dtype(name: str, residual_dtype: Any) -> None:
    """Raise for an invalid value of the option ``residual_dtype``."""
    if residual_dtype is not jnp.float32 and residual_dtype not in (None, "float32"):
        raise errors.InvalidArgumentError(
            f'{name}: residual_dtype must be "float32", or None for the dtype of each leaf, not '
            f"{residual_dtype!r}."
        )


def flatten_residual(name: str, treedef: Any, residual: Any, advice: str) -> list[Any]:
    """Return the residual of each leaf of the values; raise if the structures differ."""
    try:
        return treedef.flatten_up_to(residual)
    except ValueError as error:
        raise errors.InvalidArgumentError(
            f"{name}: the residual must be a pytree like the values, {treedef}, not "
            f"{jax.tree.structure(residual)} ({error}). {advice}"
        ) from None


def _checked(name: str, leaf: Array, residual: Any) -> Any:
    if not _is_floating(leaf):
        return residual
    given = as_array(name, residual)
    if given.shape != leaf.shape or not _is_floating(given):
        raise errors.InvalidArgumentError(
            f"{name}: the residual of a leaf {leaf.dtype.name}{list(leaf.shape)} must have its "
            f"shape and a floating dtype, not {given.dtype.name}{list(given.shape)}. {_START}"
        )
    return given


def _alike(x: Array, residual: Array) -> tuple[Array, Array]:
    """Return both with the wider dtype, varying over the axes of both, like their sum."""
    if x.dtype != residual.dtype:
        one_byte = [each.dtype for each in (x, residual) if each.dtype.itemsize == 1]
        # JAX does not promote one-byte types.
        dtype = jnp.promote_types(*([jnp.float32] * len(one_byte) or [x.dtype, residual.dtype]))
        x, residual = x.astype(dtype), residual.astype(dtype)
    return _vary_alike(x, residual)


def _vary_alike(x: Array, residual: Array) -> tuple[Array, Array]:
    axes = _jax.varying(x) | _jax.varying(residual)
    return _jax.vary(x, axes), _jax.vary(residual, axes)


def _widens(x: Array, residual: Array) -> bool:
    half = x.dtype in (jnp.bfloat16, jnp.float16)
    return half and residual.dtype == jnp.float32 and x.size > 0


def rounding_error(x: Array, dtype: Any) -> Array:
    """Return the error of rounding ``x`` to ``dtype``, in the dtype of ``x``."""
    return x - x.astype(dtype).astype(x.dtype)


def _rounded(call: Call, result: Array, lost: Array, dtype: Any) -> tuple[Array, Array]:
    """Return the result as ``dtype``, and the residual plus the error of this rounding."""
    if result.dtype == dtype:
        return result, lost
    rounded, error = result.astype(dtype), rounding_error(result, dtype)
    if call.collective == "reduce_scatter":  # only this rank rounds this row
        own = EngineExchanger(call, "raw").rank()
        return rounded, lost.at[own].add(error * call.size if call.reduce_op == "mean" else error)
    return rounded, lost + (error if call.reduce_op == "mean" else error / call.size)


def _is_floating(leaf: Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))

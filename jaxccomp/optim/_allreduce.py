"""The optax transformation that averages gradients over ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _jax, codecs, errors
from jaxccomp._api.arguments import check_options
from jaxccomp._api.error_feedback import (
    allreduce_in_a_step,
    check_op,
    check_residual_dtype,
    flatten_residual,
    whole_step,
)
from jaxccomp._api.options import Options, operation
from jaxccomp._api.overlap import run_apart
from jaxccomp.ops import allreduce
from jaxccomp.optim._policy import Bucket, Rule, plan
from jaxccomp.optim._states import (
    FeedbackState,
    PolicyState,
    check_state,
    load_optax,
    zeros_of_rank,
)

if TYPE_CHECKING:
    import optax


@operation
def allreduce_gradients(
    op: str = "mean",
    error_feedback: bool = False,
    bucket_bytes: int | None = None,
    policy: Rule | Sequence[Rule] = (),
    residual_dtype: str | None = "float32",
    **options: Unpack[Options],
) -> optax.GradientTransformation:
    """Replaces each rank's gradients by their mean over all ranks.

    It goes first in a chain: all ranks' optimisers then see the same gradients, and parameters stay
    equal. With error feedback, each rank adds the loss of a lossy codec to its gradients of the
    next step. Codecs that drop most of a gradient do not converge without it (Seide et al. 2014;
    Karimireddy et al. 2019).

    On the wire: one `jaxccomp.allreduce` or `jaxccomp.allreduce_with_feedback` of all gradients
    with the same codec; with ``bucket_bytes`` one per bucket.

    The state is empty; with error feedback a `FeedbackState` of 4 bytes per parameter, which
    differs between ranks: call ``init`` inside ``shard_map`` too, and save the state of every rank.
    With a policy that has rules for later steps, the state is a `PolicyState`.

    Args:
      op: as for `jaxccomp.allreduce`; with error feedback "sum" or "mean".
      error_feedback: whether the codec's loss is added to the next gradients.
      bucket_bytes: the approximate size of a bucket; each bucket is one call. Buckets of the last
        layers are sent while gradients of the first layers are still computed (Li et al. 2020,
        PyTorch Distributed). Leaves are sorted by path, descending; numbers in paths compare as
        numbers.
        Default: all gradients in one call.
      policy: a sequence of `Rule`. The first rule that matches a leaf sets its codec; leaves
        without a rule use ``codec``. A leaf's codec changes at the same step on all ranks.
      residual_dtype: "float32": residuals of narrower leaves are float32. None: residuals have the
        leaf's dtype, which saves two bytes per value, but additions of small values to large
        residuals are rounded away (docs/training.md).

    Returns:
      An ``optax.GradientTransformation``.

    Example:
      >>> optimizer = optax.chain(                                       # doctest: +SKIP
      ...     jaxccomp.optim.allreduce_gradients(
      ...         codec="topk", error_feedback=True, bucket_bytes=4 << 20,
      ...         policy=[jaxccomp.optim.Rule("bf16", pattern="*bias"),
      ...                 jaxccomp.optim.Rule("topk:density=0.001", from_step=1000)]),
      ...     optax.adam(1e-3))
    """
    optax = load_optax()
    check_options("allreduce", op=op, **options)  # raise now, not while training
    if error_feedback:
        check_op("allreduce_gradients with error_feedback=True", op)
    if bucket_bytes is not None and (
        isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes < 1
    ):
        raise errors.InvalidArgumentError(
            f"allreduce_gradients: bucket_bytes must be a positive integer, or None for one call, "
            f"not {bucket_bytes!r}."
        )
    check_residual_dtype("allreduce_gradients", residual_dtype)
    rules = (policy,) if isinstance(policy, Rule) else tuple(policy)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise errors.InvalidArgumentError(
                f"allreduce_gradients: policy must be a sequence of jaxccomp.optim.Rule, not "
                f"{rule!r}."
            )
    used = [options.get("codec"), *(rule.codec for rule in rules)]
    if error_feedback and all(codecs.is_lossless(codec) for codec in used):
        raise errors.InvalidArgumentError(
            f"allreduce_gradients: with error_feedback=True the codec must be lossy, such as "
            f"'topk', and {used[0]!r} loses nothing. Omit error_feedback, or name another codec."
        )
    counts = any(rule.from_step for rule in rules)

    def init(params: Any) -> Any:
        plan(params, rules, options.get("codec"), bucket_bytes)
        residual = None
        if error_feedback:
            residual = zeros_of_rank(params, options.get("axis_name"), residual_dtype)
        if counts:
            return PolicyState(jnp.zeros((), jnp.int32), residual)
        return FeedbackState(residual) if error_feedback else optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        planned = plan(updates, rules, options.get("codec"), bucket_bytes)
        if error_feedback or counts:
            kind = PolicyState if counts else FeedbackState
            check_state("allreduce_gradients", kind, state, updates, options.get("axis_name"))
        residual = state.residual if error_feedback else None
        branches = [
            functools.partial(_reduce, buckets, op, error_feedback, options)
            for buckets in planned.phases
        ]
        if not counts:
            updates, residual = branches[0](updates, residual)
            if not error_feedback:
                return updates, state
            return whole_step(updates, FeedbackState(residual), state)
        phase = jnp.searchsorted(jnp.asarray(planned.begins), state.count, side="right") - 1
        updates, residual = jax.lax.switch(
            phase, [*map(_jax.at_this_line, branches)], updates, residual
        )
        counted = PolicyState(state.count + 1, residual)
        return whole_step(updates, counted, state) if error_feedback else (updates, counted)

    return optax.GradientTransformation(init, update)


def _reduce(
    buckets: Sequence[Bucket],
    op: str,
    error_feedback: bool,
    options: Options,
    updates: Any,
    residual: Any,
) -> tuple[Any, Any]:
    """Reduce the gradients bucket by bucket; return them and the residuals."""
    leaves, treedef = jax.tree.flatten(updates)
    residuals = [None] * len(leaves)
    if error_feedback:
        residuals = flatten_residual(
            "allreduce_gradients", treedef, residual, "It is what init(params) made."
        )

    def run(number: int, members: list[Any]) -> list[Any]:
        bucket = buckets[number]
        how: Options = {**options, "codec": bucket.codec}
        if not error_feedback:
            return allreduce(members, op, **how)
        kept = [residuals[i] for i in bucket.leaves]
        members, kept = allreduce_in_a_step(members, kept, op, how)
        for i, each in zip(bucket.leaves, kept, strict=True):
            residuals[i] = each
        return members

    reduced = run_apart([[leaves[i] for i in bucket.leaves] for bucket in buckets], run)
    for bucket, members in zip(buckets, reduced, strict=True):
        for i, each in zip(bucket.leaves, members, strict=True):
            leaves[i] = each
    if error_feedback:
        residual = jax.tree.unflatten(treedef, residuals)
    return jax.tree.unflatten(treedef, leaves), residual

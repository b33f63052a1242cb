"""The states of `jaxccomp.optim`, and the parts of them that differ between ranks."""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxccomp import _jax, errors
from jaxccomp._api.arguments import check_dense
from jaxccomp._api.error_feedback import flatten_residual, residual_dtype_of


class FeedbackState(NamedTuple):
    """The state of `allreduce_gradients` with error feedback.

    Attributes:
      residual: a pytree like the gradients, with the dtypes that ``residual_dtype`` sets: the
        codec's error; None for leaves that are not floating. It differs between ranks.
    """

    residual: Any


class PolicyState(NamedTuple):
    """The state of `allreduce_gradients` with a policy that has rules for later steps.

    Attributes:
      count: int32, steps so far; the same on all ranks.
      residual: as in `FeedbackState`; None without error feedback.
    """

    count: Any
    residual: Any


class PowerSGDState(NamedTuple):
    """The state of `powersgd`.

    Attributes:
      basis: a pytree like the gradients, of matrices with ``rank`` columns; None for uncompressed
        leaves. The same on all ranks.
      residual: a pytree like the gradients: the error of the approximation; None for uncompressed
        leaves. It differs between ranks.
    """

    basis: Any
    residual: Any


class DGCState(NamedTuple):
    """The state of `dgc`.

    Attributes:
      count: int32, steps so far; the same on all ranks.
      momentum: a pytree like the gradients: this rank's momentum, cleared where values were sent.
      unsent: a pytree like the gradients: the part of this rank's velocity that is not sent yet.
    """

    count: Any
    momentum: Any
    unsent: Any


class ECQState(NamedTuple):
    """The state of `ecq`.

    Attributes:
      error: a pytree like the gradients: the decaying sum of this rank's errors. It differs between
        ranks.
    """

    error: Any


class OnebitAdamState(NamedTuple):
    """The state of `onebit_adam`.

    Attributes:
      count: int32, steps so far; the same on all ranks.
      mu: a pytree like the parameters: the first moment; the same on all ranks.
      nu: a pytree like the parameters: the second moment, frozen after the warm-up; the same on all
        ranks.
      residual: a pytree like the parameters: the codec's loss. It differs between ranks.
    """

    count: Any
    mu: Any
    nu: Any
    residual: Any


class OuterState(NamedTuple):
    """The state of outer steps (`Outer`).

    Attributes:
      params: the parameters after the last outer step; the same on all ranks.
      exchange: the state of the transformation that averages the differences; its residuals differ
        between ranks.
      optimizer: the state of the outer optimiser; the same on all ranks.
    """

    params: Any
    exchange: Any
    optimizer: Any


class QuorumState(NamedTuple):
    """The state of `Quorum`.

    Attributes:
      count: int32 on the host: the number of outer steps in this state, including steps that this
        rank missed. States with the same count have the same outer parameters.
      outer: an `OuterState`.
    """

    count: Any
    outer: Any


class StreamingState(NamedTuple):
    """The state of `Streaming`.

    Attributes:
      count: int32 on the host: inner steps so far; the same on all ranks.
      exchanges: int32 on the host, per fragment: the number of exchanges with results in the state.
      fragments: an `OuterState` per fragment, whose parameters are a dict by path.
    """

    count: Any
    exchanges: Any
    fragments: Any


# By type of state: the fields that differ between ranks.
PER_RANK: dict[type, tuple[str, ...]] = {
    FeedbackState: ("residual",),
    PolicyState: ("residual",),
    PowerSGDState: ("residual",),
    DGCState: ("momentum", "unsent"),
    ECQState: ("error",),
    OnebitAdamState: ("residual",),
}


def zeros_of_rank(tree: Any, axis_name: Any, residual_dtype: str | None) -> Any:
    """Return zeros, varying along the axes, for floating leaves; None for other leaves."""

    def zeros(leaf: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            return None
        zeros = jnp.zeros_like(leaf, dtype=residual_dtype_of(jnp.result_type(leaf), residual_dtype))
        return _jax.vary(zeros, _axes(axis_name))

    return jax.tree.map(zeros, tree)


def check_state(name: str, kind: type, state: Any, updates: Any, axis_name: Any) -> None:
    """Check that a state fits the gradients and that its per-rank fields vary along the axes.

    Raises:
      InvalidArgumentError: for a state of another type, and for per-rank fields whose tree or
        shapes differ from the gradients', or whose type is the same on all ranks, as with
        ``in_specs=P()``.
    """
    check_dense(name, updates)
    if not isinstance(state, kind):
        raise errors.InvalidArgumentError(
            f"{name}: the state must be a {kind.__name__}, which init(params) makes, not "
            f"{type(state).__name__}."
        )
    leaves, treedef = jax.tree_util.tree_flatten_with_path(updates)
    for field in PER_RANK[kind]:
        kept = getattr(state, field)
        if kept is None:  # without error feedback
            continue
        parts = flatten_residual(name, treedef, kept, "It is what init(params) made.")
        for (path, leaf), part in zip(leaves, parts, strict=True):
            if part is not None:
                what = f"{field}{jax.tree_util.keystr(path)}"
                _check_part(name, what, jnp.shape(leaf), part, axis_name)


def _check_part(name: str, what: str, shape: tuple[int, ...], part: Any, axis_name: Any) -> None:
    if jnp.shape(part) != shape:
        raise errors.InvalidArgumentError(
            f"{name}: {what} of the state has the shape {list(jnp.shape(part))}, and the gradient "
            f"{list(shape)}. The state is what init(params) makes for these parameters; one that "
            "stack_residuals has stacked goes through unstack_residuals first."
        )
    if _jax.not_varying(part, _axes(axis_name)):
        raise errors.InvalidArgumentError(
            f"{name}: {what} of the state is by its type the same on all ranks along "
            f"{axis_name!r}, as in_specs=P() makes it, but each rank has one of its own. Call init "
            "inside the shard_map; or let jaxccomp.optim.state_specs(optimizer, params, "
            f"{axis_name!r}) say the specs of the state, with stack_residuals and "
            "unstack_residuals inside (docs/training.md)."
        )


def _axes(axis_name: Any) -> tuple[Any, ...]:
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def require_floating(name: str, params: Any) -> None:
    check_dense(name, params)
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise errors.UnsupportedDTypeError(
                f"{name}: gradients must be floating, not {jnp.result_type(leaf)}; mask other "
                "leaves by optax.masked."
            )


def load_optax() -> types.ModuleType:
    try:
        import optax
    except ImportError as error:
        raise errors.MissingPackageError(
            f"jaxccomp.optim needs optax ({error}): `pip install optax`, or "
            "`pip install 'jaxccomp[optim]'`."
        ) from None
    return optax

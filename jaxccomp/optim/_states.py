"""The states of what is here, and which of their parts differ from rank to rank."""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxccomp import _compat, errors
from jaxccomp._api.error_feedback import flatten_residual, residual_dtype_of


class FeedbackState(NamedTuple):
    """What `allreduce_gradients` keeps with error feedback.

    Attributes:
      residual: a pytree like the gradients, of the dtypes that ``residual_dtype`` says: what the
        codec lost of this rank's, None for leaves that are not floating. It differs from rank to
        rank.
    """

    residual: Any


class PolicyState(NamedTuple):
    """What `allreduce_gradients` keeps with a policy that has rules for later steps.

    Attributes:
      count: int32, steps so far; the same on all ranks.
      residual: as in `FeedbackState`; None without error feedback.
    """

    count: Any
    residual: Any


class PowerSGDState(NamedTuple):
    """What `powersgd` keeps.

    Attributes:
      basis: a pytree like the gradients, of matrices with ``rank`` columns; None for leaves that
        travel whole. The same on all ranks.
      residual: a pytree like the gradients: what the approximation lost; None for such leaves. It
        differs from rank to rank.
    """

    basis: Any
    residual: Any


class DGCState(NamedTuple):
    """What `dgc` keeps.

    Attributes:
      count: int32, steps so far; the same on all ranks.
      momentum: a pytree like the gradients: this rank's momentum where nothing has been sent yet.
      unsent: a pytree like the gradients: this rank's velocity that has not been sent yet.
    """

    count: Any
    momentum: Any
    unsent: Any


class ECQState(NamedTuple):
    """What `ecq` keeps.

    Attributes:
      error: a pytree like the gradients: what was lost of this rank's, the older the less. It
        differs from rank to rank.
    """

    error: Any


class OnebitAdamState(NamedTuple):
    """What `onebit_adam` keeps.

    Attributes:
      count: int32, steps so far; the same on all ranks.
      mu: a pytree like the parameters: the first moment; the same on all ranks.
      nu: a pytree like the parameters: the second moment, which stays as it is after the warm-up;
        the same on all ranks.
      residual: a pytree like the parameters: what the codec lost. It differs from rank to rank.
    """

    count: Any
    mu: Any
    nu: Any
    residual: Any


class OuterState(NamedTuple):
    """What an outer step keeps (`Outer`).

    Attributes:
      params: a pytree like the parameters: those that all ranks had after the last outer step; the
        same on all ranks.
      exchange: the state of what averages the differences; its residuals differ from rank to rank.
      optimizer: the state of the outer optimiser; the same on all ranks.
    """

    params: Any
    exchange: Any
    optimizer: Any


class QuorumState(NamedTuple):
    """What `Quorum` keeps.

    Attributes:
      count: int32 of the host, outer steps that this state has, of this rank or of others without
        it; a state with the same number is the same on all ranks.
      outer: an `OuterState`.
    """

    count: Any
    outer: Any


class StreamingState(NamedTuple):
    """What `Streaming` keeps.

    Attributes:
      count: int32 of the host, inner steps so far; the same on all ranks.
      exchanges: int32 of the host, by fragment: how many exchanges the state has the result of.
      fragments: an `OuterState` of each fragment, whose parameters are a dict by path.
    """

    count: Any
    exchanges: Any
    fragments: Any


# By state: the parts that differ from rank to rank.
PER_RANK: dict[type, tuple[str, ...]] = {
    FeedbackState: ("residual",),
    PolicyState: ("residual",),
    PowerSGDState: ("residual",),
    DGCState: ("momentum", "unsent"),
    ECQState: ("error",),
    OnebitAdamState: ("residual",),
}


def zeros_of_rank(tree: Any, axis_name: Any, residual_dtype: str | None) -> Any:
    """First residuals of floating leaves, of a type that varies along the axes; None for others."""

    def zeros(leaf: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            return None
        zeros = jnp.zeros_like(leaf, dtype=residual_dtype_of(jnp.result_type(leaf), residual_dtype))
        return _compat.vary(zeros, _axes(axis_name))

    return jax.tree.map(zeros, tree)


def check_state(name: str, kind: type, state: Any, updates: Any, axis_name: Any) -> None:
    """Checks that a state is what ``init`` makes for such gradients, each rank's its own.

    Raises:
      InvalidArgumentError: for a state of another kind, and for parts that differ from rank to rank
        but are of another tree or other shapes than the gradients, or by their type the same on all
        ranks, as ``in_specs=P()`` makes them.
    """
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
    if _compat.not_varying(part, _axes(axis_name)):
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

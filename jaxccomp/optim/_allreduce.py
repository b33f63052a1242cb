"""Averaging gradients over ranks as a gradient transformation."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _compat, codecs, errors
from jaxccomp._api.options import Options, operation
from jaxccomp.ops import allreduce, allreduce_with_feedback

if TYPE_CHECKING:
    import optax


class FeedbackState(NamedTuple):
    """What `allreduce_gradients` keeps with error feedback.

    Attributes:
      residual: a pytree like the gradients: what the codec lost of this rank's, None for leaves
        that are not floating. It differs from rank to rank.
    """

    residual: Any


@operation
def allreduce_gradients(
    op: str = "mean",
    error_feedback: bool = False,
    **options: Unpack[Options],
) -> optax.GradientTransformation:
    """Replaces each rank's gradients by their mean over all ranks.

    It goes first in a chain, so that all ranks' optimisers see the same gradients and parameters
    stay equal. With error feedback, what a lossy codec loses is kept and added to the gradients of
    the next step, without which codecs that drop most of a gradient do not converge (Seide et al.
    2014; Karimireddy et al. 2019).

    On the wire: one `jaxccomp.allreduce` or `jaxccomp.allreduce_with_feedback` of all gradients.

    The state is empty; with error feedback a `FeedbackState` as large as the parameters, which
    differs between ranks: inside ``shard_map`` call ``init`` there too, and save every rank's.

    Args:
      op: as for `jaxccomp.allreduce`; with error feedback "sum" or "mean".
      error_feedback: whether what the codec loses is added to the next gradients.

    Returns:
      An ``optax.GradientTransformation``.

    Example:
      >>> optimizer = optax.chain(                                       # doctest: +SKIP
      ...     jaxccomp.optim.allreduce_gradients(codec="topk", error_feedback=True),
      ...     optax.adam(1e-3))
    """
    optax = _load_optax()
    codecs.parse(options.get("codec"))  # what is wrong with it is said here, not while training

    def init(params: Any) -> Any:
        if not error_feedback:
            return optax.EmptyState()
        return FeedbackState(jax.tree.map(lambda x: _zeros(x, options.get("axis_name")), params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        if not error_feedback:
            return allreduce(updates, op, **options), state
        updates, residual = allreduce_with_feedback(updates, state.residual, op, **options)
        return updates, FeedbackState(residual)

    return optax.GradientTransformation(init, update)


def _zeros(param: Any, axis_name: Any) -> Any:
    if not jnp.issubdtype(jnp.result_type(param), jnp.floating):
        return None
    axes = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
    return _compat.vary(jnp.zeros_like(param), axes)


def _load_optax() -> types.ModuleType:
    try:
        import optax
    except ImportError as error:
        raise errors.MissingPackageError(
            f"jaxccomp.optim needs optax ({error}): `pip install optax`, or "
            "`pip install 'jaxccomp[optim]'`."
        ) from None
    return optax

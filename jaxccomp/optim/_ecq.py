"""ECQ-SGD: quantised gradients with error feedback that decays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import jax

from jaxccomp import errors
from jaxccomp._api.arguments import check_options
from jaxccomp._api.error_feedback import allreduce_in_a_step, check_residual_dtype, whole_step
from jaxccomp._api.options import Options, operation
from jaxccomp.optim._states import (
    ECQState,
    check_state,
    load_optax,
    require_floating,
    zeros_of_rank,
)

if TYPE_CHECKING:
    import optax


@operation
def ecq(
    strength: float = 0.2,
    decay: float = 0.9,
    residual_dtype: str | None = "float32",
    **options: Unpack[Options],
) -> optax.GradientTransformation:
    """Replaces gradients by their mean, quantised with error feedback that decays.

    Each rank sends ``Q(g + strength * h)`` and keeps ``h = decay * h + (g - Q(g + strength * h))``
    (Wu, Huang, Huang, Zhang 2018, "Error Compensated Quantized SGD", with their alpha and beta).
    Older errors thus have less weight; if both factors are 1 this is plain error feedback. It suits
    unbiased codecs: their errors are zero on average, but add noise.

    On the wire: one `jaxccomp.allreduce_with_feedback` of all gradients with ``codec``, by default
    "int4:rounding=stochastic".

    Args:
      strength: the factor of the errors that are added to each gradient, in (0, 1].
      decay: the factor of the errors after a step, in [0, 1].
      residual_dtype: the dtype of the errors, as for `allreduce_gradients`.

    Returns:
      An ``optax.GradientTransformation`` whose state is an `ECQState`. Gradients must be floating.

    Example:
      >>> optimizer = optax.chain(jaxccomp.optim.ecq(), optax.sgd(0.1))    # doctest: +SKIP
    """
    optax = load_optax()
    if not 0 < strength <= 1 or not 0 <= decay <= 1:
        raise errors.InvalidArgumentError(
            f"ecq: strength must be in (0, 1] and decay in [0, 1], not {strength} and {decay}."
        )
    how: Any = {**options, "codec": options.get("codec") or "int4:rounding=stochastic"}
    check_options("allreduce", op="mean", **how)
    check_residual_dtype("ecq", residual_dtype)

    def init(params: Any) -> ECQState:
        require_floating("ecq", params)
        return ECQState(zeros_of_rank(params, options.get("axis_name"), residual_dtype))

    def update(updates: Any, state: ECQState, params: Any = None) -> tuple[Any, ECQState]:
        del params
        check_state("ecq", ECQState, state, updates, options.get("axis_name"))
        added = jax.tree.map(lambda h: strength * h, state.error)
        updates, lost = allreduce_in_a_step(updates, added, "mean", how)
        # lost = g + strength * h - Q(...); strength * h is not an error of this step.
        error = jax.tree.map(lambda h, e: e + (decay - strength) * h, state.error, lost)
        return whole_step(updates, ECQState(error), state)

    return optax.GradientTransformation(init, update)

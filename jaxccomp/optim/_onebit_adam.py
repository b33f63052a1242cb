"""Adam whose momentum travels in one bit, after a warm-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _compat, errors
from jaxccomp._api.arguments import check_options
from jaxccomp._api.error_feedback import check_residual_dtype, residual_dtype_of
from jaxccomp._api.options import Options, operation
from jaxccomp._api.whole_steps import whole_step
from jaxccomp.ops import allreduce, allreduce_with_feedback
from jaxccomp.optim._states import (
    OnebitAdamState,
    check_state,
    load_optax,
    require_floating,
    zeros_of_rank,
)

if TYPE_CHECKING:
    import optax


@operation
def onebit_adam(
    learning_rate: float,
    warmup_steps: int,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    residual_dtype: str | None = "float32",
    **options: Unpack[Options],
) -> optax.GradientTransformation:
    """Adam with all ranks' gradients, of which momentum travels coded once the variance is known.

    Error feedback needs what is linear in gradients, which Adam's update is not. So for
    ``warmup_steps`` this is Adam with the exact mean of gradients; then the second moment stays as
    it is, each rank adds its own gradient to the first moment, and the mean of these travels with a
    codec and error feedback (Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang, He 2021, "1-bit
    Adam", algorithm 1).

    On the wire: in the warm-up a raw `jaxccomp.allreduce`, then one
    `jaxccomp.allreduce_with_feedback` with ``codec``, by default "onebit".

    Args:
      learning_rate: of Adam.
      warmup_steps: how many steps are exact: 15 to 20 percent of all in the paper, enough for the
        second moment to be what it will be.
      b1: decay of the first moment.
      b2: decay of the second.
      eps: added to its root.
      residual_dtype: as for `allreduce_gradients`; also of the moments, whose decay a narrower
        dtype rounds away.

    Returns:
      An ``optax.GradientTransformation`` whose state is an `OnebitAdamState`; its updates have
      their sign and size, so nothing but ``optax.add_decayed_weights`` and the like need follow it.

    Example:
      >>> optimizer = jaxccomp.optim.onebit_adam(1e-3, warmup_steps=2000)  # doctest: +SKIP
    """
    optax = load_optax()
    if warmup_steps < 1:
        raise errors.InvalidArgumentError(
            f"onebit_adam: warmup_steps must be at least 1, not {warmup_steps}: without a second "
            "moment there is no step."
        )
    coded: Any = {**options, "codec": options.get("codec") or "onebit"}
    check_options("allreduce", op="mean", **coded)
    check_residual_dtype("onebit_adam", residual_dtype)
    raw: Any = {**options, "codec": None}

    def init(params: Any) -> OnebitAdamState:
        require_floating("onebit_adam", params)

        def zeros(leaf: Any) -> Any:
            return jnp.zeros_like(
                leaf, dtype=residual_dtype_of(jnp.result_type(leaf), residual_dtype)
            )

        mu, nu = (jax.tree.map(zeros, params) for _ in range(2))
        own = zeros_of_rank(params, options.get("axis_name"), residual_dtype)
        return OnebitAdamState(jnp.zeros((), jnp.int32), mu, nu, own)

    def exact(grads: Any, state: OnebitAdamState) -> tuple[Any, Any, Any]:
        grads = allreduce(grads, "mean", **raw)
        grads = jax.tree.map(lambda m, g: g.astype(m.dtype), state.mu, grads)
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda n, g: b2 * n + (1 - b2) * g * g, state.nu, grads)
        return mu, nu, state.residual

    def compressed(grads: Any, state: OnebitAdamState) -> tuple[Any, Any, Any]:
        mine = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g.astype(m.dtype), state.mu, grads)
        mu, residual = allreduce_with_feedback(mine, state.residual, "mean", **coded)
        return mu, state.nu, residual

    def update(
        updates: Any, state: OnebitAdamState, params: Any = None
    ) -> tuple[Any, OnebitAdamState]:
        del params
        check_state("onebit_adam", OnebitAdamState, state, updates, options.get("axis_name"))
        mu, nu, residual = jax.lax.cond(
            state.count < warmup_steps,
            _compat.at_this_line(exact),
            _compat.at_this_line(compressed),
            updates,
            state,
        )
        count = state.count + 1
        # The second moment is that of the warm-up's steps, the first of all.
        first = 1 - b1 ** count.astype(jnp.float32)
        second = 1 - b2 ** jnp.minimum(count, warmup_steps).astype(jnp.float32)

        def step(m: Any, n: Any, g: Any) -> Any:
            # Where there was no gradient in the warm-up, a code of all values would be one now.
            root = jnp.sqrt(n / second) + eps
            return jnp.where(n > 0, -learning_rate * (m / first) / root, 0).astype(g.dtype)

        after = OnebitAdamState(count, mu, nu, residual)
        # `step` may hide a moment that is not finite.
        return whole_step(jax.tree.map(step, mu, nu, updates), after, state, also=(mu, nu))

    return optax.GradientTransformation(init, update)

"""1-bit Adam: after a warm-up, ranks average momentum in one bit per value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _jax, errors
from jaxccomp._api.arguments import check_options
from jaxccomp._api.error_feedback import (
    allreduce_in_a_step,
    check_residual_dtype,
    residual_dtype_of,
    whole_step,
)
from jaxccomp._api.options import Options, operation
from jaxccomp.ops import allreduce
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
    """Adam over all ranks: exact in a warm-up, then with compressed momentum.

    Error feedback needs values that are linear in the gradients; Adam's update is not. So for
    ``warmup_steps`` this is Adam with the exact mean of gradients. Then the second moment is
    frozen, each rank adds its own gradient to the first moment, and ranks average the first moments
    with a codec and error feedback (Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang, He 2021,
    "1-bit Adam", algorithm 1).

    On the wire: in the warm-up a raw `jaxccomp.allreduce`, then one
    `jaxccomp.allreduce_with_feedback` with ``codec``, by default "onebit".

    Args:
      learning_rate: Adam's learning rate.
      warmup_steps: the number of exact steps: 15 to 20 percent of all in the paper, until the
        second moment has settled.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      residual_dtype: as for `allreduce_gradients`; also the dtype of the moments. A narrower dtype
        rounds away the decay of the moments.

    Returns:
      An ``optax.GradientTransformation`` whose state is an `OnebitAdamState`. Its updates include
      the sign and the learning rate. ``optax.add_decayed_weights`` and the like may follow in the
      chain; another optimiser is not needed.

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
        mu, residual = allreduce_in_a_step(mine, state.residual, "mean", coded)
        return mu, state.nu, residual

    def update(
        updates: Any, state: OnebitAdamState, params: Any = None
    ) -> tuple[Any, OnebitAdamState]:
        del params
        check_state("onebit_adam", OnebitAdamState, state, updates, options.get("axis_name"))
        mu, nu, residual = jax.lax.cond(
            state.count < warmup_steps,
            _jax.at_this_line(exact),
            _jax.at_this_line(compressed),
            updates,
            state,
        )
        count = state.count + 1
        # Bias corrections: the second moment has the warm-up's steps only, the first has all steps.
        first = 1 - b1 ** count.astype(jnp.float32)
        second = 1 - b2 ** jnp.minimum(count, warmup_steps).astype(jnp.float32)

        def step(m: Any, n: Any, g: Any) -> Any:
            # n = 0: no gradient in the warm-up. One-bit codes have no zero: m is noise.
            root = jnp.sqrt(n / second) + eps
            return jnp.where(n > 0, -learning_rate * (m / first) / root, 0).astype(g.dtype)

        after = OnebitAdamState(count, mu, nu, residual)
        # `step` maps some non-finite moments to finite updates, so check the moments too.
        return whole_step(jax.tree.map(step, mu, nu, updates), after, state, also=(mu, nu))

    return optax.GradientTransformation(init, update)

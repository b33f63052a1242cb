"""Deep Gradient Compression: sparse gradients with momentum correction."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _jax, errors
from jaxccomp._api.arguments import check_options, make_call
from jaxccomp._api.error_feedback import (
    allreduce_in_a_step,
    check_residual_dtype,
    rounding_error,
    whole_step,
)
from jaxccomp._api.options import Options, operation
from jaxccomp.optim._states import (
    DGCState,
    check_state,
    load_optax,
    require_floating,
    zeros_of_rank,
)

if TYPE_CHECKING:
    import optax

# Densities of the four quarters of the warm-up; in the paper a quarter is an epoch.
_WARMUP = (0.25, 0.0625, 0.015625, 0.004)


@operation
def dgc(
    momentum: float = 0.9,
    density: float = 0.001,
    warmup_steps: int = 0,
    clip_norm: float | None = None,
    residual_dtype: str | None = "float32",
    **options: Unpack[Options],
) -> optax.GradientTransformation:
    """Replaces gradients by the mean of the largest values of the ranks' velocities.

    Each rank has its own momentum ``u = momentum * u + g`` and velocity ``v = v + u``, so unsent
    values accumulate with momentum. It sends the values of ``v`` that are largest in magnitude, and
    clears them in ``v`` and in ``u``, so that stale momentum has no effect (Lin, Han, Mao, Wang,
    Dally 2018, "Deep Gradient Compression", with momentum correction, momentum factor masking,
    local clipping and warm-up).

    On the wire: one `jaxccomp.allreduce_with_feedback` of all gradients, with the
    step's density. ``codec`` is "dgc" (the default: a threshold from a sample) or "topk";
    ``algorithm`` is by default "one_shot", which encodes each gradient once.

    Args:
      momentum: the momentum of SGD. No other transformation of the chain may have momentum.
      density: the fraction of ``v`` that is sent, in (0, 1].
      warmup_steps: the four quarters of these steps send 25, 6.25, 1.6 and 0.4 percent, or
        ``density`` if that is more.
      clip_norm: gradients whose norm over all leaves exceeds ``clip_norm / sqrt(ranks)`` are scaled
        to that norm before they are added to the momentum. None: no clipping.
      residual_dtype: the dtype of momentum and velocity, as for `allreduce_gradients`.

    Returns:
      An ``optax.GradientTransformation`` whose state is a `DGCState`. Gradients must be floating.

    Example:
      >>> optimizer = optax.chain(jaxccomp.optim.dgc(warmup_steps=1000),   # doctest: +SKIP
      ...                         optax.sgd(0.1))
    """
    optax = load_optax()
    codec = options.pop("codec", None) or "dgc"
    if codec not in ("dgc", "topk"):
        raise errors.InvalidArgumentError(
            f'dgc: codec must be "dgc" or "topk", of which the density is set here, not {codec!r}.'
        )
    if not 0 < density <= 1 or not 0 <= momentum < 1 or warmup_steps < 0:
        raise errors.InvalidArgumentError(
            "dgc: density must be in (0, 1], momentum in [0, 1), warmup_steps at least 0, not "
            f"{density}, {momentum}, {warmup_steps}."
        )
    options.setdefault("algorithm", "one_shot")
    check_options("allreduce", op="mean", **options)
    check_residual_dtype("dgc", residual_dtype)
    phases = [max(density, each) for each in _WARMUP] if warmup_steps else []
    begins = [i * warmup_steps // len(_WARMUP) for i in range(len(phases) + 1)]
    phases.append(density)

    def init(params: Any) -> DGCState:
        require_floating("dgc", params)
        own = [zeros_of_rank(params, options.get("axis_name"), residual_dtype) for _ in range(2)]
        return DGCState(jnp.zeros((), jnp.int32), *own)

    def send(density: float, unsent: Any) -> tuple[Any, Any]:
        start = jax.tree.map(jnp.zeros_like, unsent)
        how: Any = {**options, "codec": f"{codec}:density={density}"}
        return allreduce_in_a_step(unsent, start, "mean", how)

    def update(updates: Any, state: DGCState, params: Any = None) -> tuple[Any, DGCState]:
        del params
        check_state("dgc", DGCState, state, updates, options.get("axis_name"))
        if clip_norm is not None:
            ranks = make_call("allreduce", **{**options, "op": "mean"}).size
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(updates)))
            maximum = clip_norm / ranks**0.5
            scale = jnp.where(norm > maximum, maximum / norm, 1)
            updates = jax.tree.map(lambda g: (g * scale).astype(g.dtype), updates)
        mass = jax.tree.map(lambda u, g: momentum * u + g.astype(u.dtype), state.momentum, updates)
        unsent = jax.tree.map(jnp.add, state.unsent, mass)
        branches = [_jax.at_this_line(functools.partial(send, each)) for each in phases]
        if len(branches) == 1:
            means, left = branches[0](unsent)
        else:
            phase = jnp.searchsorted(jnp.asarray(begins), state.count, side="right") - 1
            means, left = jax.lax.switch(phase, branches, unsent)
        # A value differs from its residual if it was sent: clear its momentum.
        kept = jax.tree.map(lambda u, v, x: jnp.where(x == v, u, 0), mass, unsent, left)
        left = jax.tree.map(
            lambda x, mean, g: x + rounding_error(mean, g.dtype), left, means, updates
        )
        updates = jax.tree.map(lambda mean, g: mean.astype(g.dtype), means, updates)
        return whole_step(updates, DGCState(state.count + 1, kept, left), state)

    return optax.GradientTransformation(init, update)

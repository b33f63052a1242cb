"""AdaComp: sparse gradients; the number of values sent per bin adapts to the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import codecs, errors
from jaxccomp._api.arguments import check_options
from jaxccomp._api.error_feedback import check_residual_dtype, whole_step
from jaxccomp._api.options import Options, operation
from jaxccomp.ops import allreduce
from jaxccomp.optim._states import (
    FeedbackState,
    check_state,
    load_optax,
    require_floating,
    zeros_of_rank,
)

if TYPE_CHECKING:
    import optax


@operation
def adacomp(
    bin_size: int = 512, residual_dtype: str | None = "float32", **options: Unpack[Options]
) -> optax.GradientTransformation:
    """Replaces gradients by the mean of the values that ranks select in each bin.

    ``G`` is a rank's residual plus its gradient ``g``. In each bin of successive values the rank
    sends the values where ``|G + g|`` is at least the bin's maximum of ``|G|``: values that have
    just grown, and values that have waited longest. Their number depends on the gradient. All
    values of a leaf are sent with one magnitude, the mean of the bins' maxima. The residual keeps
    the difference (Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan 2018, "AdaComp: Adaptive
    Residual Gradient Compression", algorithms 1 and 2).

    A value that is not finite is sent unchanged, so all ranks see it (docs/training.md).

    On the wire: one `jaxccomp.allreduce` of sparse arrays with ``codec``, by default "lossless",
    whose entropy coder replaces the paper's list of positions. If libzstd is installed,
    "lossless|zstd" sends a seventh of that: if 1 percent of a million values is sent, 1/250 of the
    raw bytes instead of 1/37.

    Args:
      bin_size: values per bin; in the paper 512 for dense layers and 50 for convolutions.
      residual_dtype: as for `allreduce_gradients`.

    Returns:
      An ``optax.GradientTransformation`` whose state is a `FeedbackState`. Gradients must be
      floating.

    Raises:
      InvalidArgumentError: for a ``codec`` that is not bit-exact: no residual keeps its error.

    Example:
      >>> optimizer = optax.chain(jaxccomp.optim.adacomp(), optax.sgd(0.1))  # doctest: +SKIP
    """
    optax = load_optax()
    if isinstance(bin_size, bool) or not isinstance(bin_size, int) or bin_size < 1:
        raise errors.InvalidArgumentError(
            f"adacomp: bin_size must be a positive integer, not {bin_size!r}."
        )
    how: Any = {**options, "codec": options.get("codec") or "lossless"}
    check_options("allreduce", op="mean", **how)
    check_residual_dtype("adacomp", residual_dtype)
    if not codecs.is_lossless(how["codec"]):
        raise errors.InvalidArgumentError(
            f'adacomp: codec must be bit-exact, like "lossless" or "zstd", not {how["codec"]!r}: '
            "no residual keeps the error of a lossy codec."
        )

    def init(params: Any) -> FeedbackState:
        require_floating("adacomp", params)
        return FeedbackState(zeros_of_rank(params, options.get("axis_name"), residual_dtype))

    def choose(g: Any, unsent: Any) -> Any:
        """Return the values of one leaf to send, zero elsewhere."""
        total = g + unsent
        size = jnp.where(jnp.isfinite(total), jnp.abs(total), 0).reshape(-1)
        bins = jnp.pad(size, (0, -size.size % bin_size)).reshape(-1, bin_size)
        maximum = bins.max(axis=1, keepdims=True)
        # The padding of the last bin is 0 and changes no maximum. Bins of zeros send nothing.
        minimum = jnp.broadcast_to(maximum, bins.shape).reshape(-1)[: size.size].reshape(g.shape)
        grown = (jnp.abs(total + g) >= minimum) & (minimum > 0)
        sent = jnp.where(grown, jnp.sign(total) * maximum.mean(), 0)
        return jnp.where(jnp.isfinite(total), sent, total).astype(g.dtype)

    def update(updates: Any, state: FeedbackState, params: Any = None) -> tuple[Any, FeedbackState]:
        del params
        check_state("adacomp", FeedbackState, state, updates, options.get("axis_name"))
        sent = jax.tree.map(choose, updates, state.residual)

        residual = jax.tree.map(lambda g, u, s: g + u - s, updates, state.residual, sent)
        return whole_step(allreduce(sent, "mean", **how), FeedbackState(residual), state)

    return optax.GradientTransformation(init, update)

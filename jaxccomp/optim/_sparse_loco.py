"""SparseLoCo: outer steps that send the largest values of each chunk, in two bits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxccomp import codecs, errors
from jaxccomp._api.arguments import check_options
from jaxccomp._api.error_feedback import (
    check_residual_dtype,
    flatten_residual,
    rounding_error,
    whole_step,
)
from jaxccomp._api.options import Options, operation
from jaxccomp.ops import allgather
from jaxccomp.optim._outer import Outer, make_outer
from jaxccomp.optim._states import FeedbackState, check_state, load_optax, zeros_of_rank

if TYPE_CHECKING:
    import optax

Array = Any

_CHUNK = 4096  # as in the paper: 12 bits per position
_POSITION_BITS = 12


@operation
def sparse_loco(
    density: float = 1 / 64,
    decay: float = 0.95,
    learning_rate: float = 1.0,
    quantize: bool = True,
    mesh: Mesh | None = None,
    exclude_nonfinite: bool = False,
    residual_dtype: str | None = "float32",
    **options: Unpack[Options],
) -> Outer:
    """SparseLoCo: `diloco` that sends the largest values; unsent values act as momentum.

    Each rank adds its outer gradient to an accumulator, ``e = decay * e + gradient``, sends the
    largest values of each chunk of 4096 in two bits each, and subtracts the decoded values from
    ``e`` (Sarfi et al. 2025, "Communication Efficient LLM Pre-training with SparseLoCo", algorithm
    1). All ranks apply the mean of the decoded values by plain SGD. As in the paper positions take
    12 bits. Here chunks are consecutive values of a leaf, and the two bits are a sign and one of
    two magnitudes per chunk: the means of the magnitudes above and below their mean.

    On the wire: in ``step``, one `jaxccomp.allgather` of positions, signs and magnitudes: 14 bits
    per value sent and 4 bytes per chunk.

    Args:
      density: the fraction of each chunk's values that is sent, in (0, 1]; at least one value.
      decay: the factor of the accumulator in each outer step, in [0, 1].
      learning_rate: the learning rate of the outer step.
      quantize: False: values are sent as float32; positions still take 12 bits.
      mesh: as for `diloco`.
      exclude_nonfinite: as for `diloco`. An excluded rank still sends values of its accumulator.
      residual_dtype: the dtype of the accumulator, as for `allreduce_gradients`.

    Returns:
      An `Outer`. The option ``codec`` compresses the encoded bytes again; it must be lossless.

    Example:
      >>> outer = jaxccomp.optim.sparse_loco(density=1 / 128)               # doctest: +SKIP
    """
    optax = load_optax()
    if not 0 < density <= 1 or not 0 <= decay <= 1 or not learning_rate > 0:
        raise errors.InvalidArgumentError(
            "sparse_loco: density must be in (0, 1], decay in [0, 1], learning_rate above 0, not "
            f"{density}, {decay}, {learning_rate}."
        )
    codec = options.get("codec")
    if not codecs.is_lossless(codec):
        raise errors.InvalidArgumentError(
            f"sparse_loco: codec must be lossless, not {codec!r}, as it codes positions "
            "and signs; set density= and quantize= instead, or use diloco with this codec."
        )
    check_residual_dtype("sparse_loco", residual_dtype)
    exchange = functools.partial(_exchange, density, decay, quantize, residual_dtype)
    inner = optax.sgd(learning_rate)
    return make_outer("sparse_loco", exchange, inner, mesh, exclude_nonfinite, options)


def _exchange(
    density: float,
    decay: float,
    quantize: bool,
    residual_dtype: str | None,
    **options: Unpack[Options],
) -> optax.GradientTransformation:
    """Return the transformation to the mean of the ranks' largest values; its residual decays."""
    optax = load_optax()
    check_options("allgather", op=None, **options)

    def init(params: Any) -> FeedbackState:
        return FeedbackState(zeros_of_rank(params, options.get("axis_name"), residual_dtype))

    def update(updates: Any, state: FeedbackState, params: Any = None) -> Any:
        del params
        check_state("sparse_loco", FeedbackState, state, updates, options.get("axis_name"))
        leaves, treedef = jax.tree.flatten(updates)
        residuals = flatten_residual(
            "sparse_loco", treedef, state.residual, "It is what init(params) made."
        )
        own = [decay * e + g.astype(e.dtype) for e, g in zip(residuals, leaves, strict=True)]
        codes = [_encode(x, density, quantize) for x in own]
        gathered = allgather(codes, **options)
        means, kept = [], []
        for g, x, code, rows in zip(leaves, own, codes, gathered, strict=True):
            decode = functools.partial(_decode, like=x)
            mean = _sum(decode, rows) / len(rows[0])
            means.append(mean.astype(g.dtype))
            kept.append(x - decode(code) + rounding_error(mean, g.dtype))
        after = FeedbackState(treedef.unflatten(kept))
        return whole_step(treedef.unflatten(means), after, state)

    return optax.GradientTransformation(init, update)


def _sum(decode: Callable[[Any], Array], rows: Any) -> Array:
    """Add up the ranks' decoded codes in rank order: the same bits on all ranks and devices."""
    first, others = ([each[part] for each in rows] for part in (0, slice(1, None)))
    return lax.scan(lambda total, code: (total + decode(code), None), decode(first), others)[0]


def _sizes(like: Array) -> tuple[int, int]:
    """Return the number of chunks, and the number of values in each."""
    length = max(1, min(_CHUNK, like.size))
    return -(-like.size // length), length


def _encode(x: Array, density: float, quantize: bool) -> tuple[Array, ...]:
    """Return the packed positions of each chunk's largest values, and their encoded values."""
    chunks, length = _sizes(x)
    flat = x.reshape(-1).astype(jnp.float32)
    rows = jnp.pad(flat, (0, chunks * length - x.size)).reshape(chunks, length)
    count = max(1, math.ceil(density * length))
    # The bits of magnitudes have the same order as integers; NaN is the largest.
    magnitudes = lax.bitcast_convert_type(jnp.abs(rows), jnp.int32)
    places = lax.top_k(magnitudes, count)[1]
    values = jnp.take_along_axis(rows, places, axis=1)
    # A chunk with a value that is not finite sends only NaN.
    finite = jnp.isfinite(rows).all(axis=1, keepdims=True)
    values = jnp.where(finite, values, jnp.nan)
    positions = _pack(places, _POSITION_BITS)
    if not quantize:
        return positions, values
    sizes = jnp.abs(values)
    large = sizes > sizes.mean(axis=1, keepdims=True)
    levels = jnp.stack([_mean(sizes, ~large), _mean(sizes, large)], axis=1)
    levels = jnp.where(finite, levels, jnp.nan).astype(jnp.bfloat16)
    return positions, _pack(2 * (values < 0) + large, 2), levels


def _mean(x: Array, chosen: Array) -> Array:
    return jnp.where(chosen, x, 0).sum(axis=1) / jnp.maximum(chosen.sum(axis=1), 1)


def _decode(code: Sequence[Array], like: Array) -> Array:
    """Return a code's values as float32 in the shape of ``like``, zero where none was sent."""
    chunks, length = _sizes(like)
    if len(code) == 2:
        values = code[1]
        count = values.shape[1]
    else:
        count = code[0].shape[1] * 8 // _POSITION_BITS
        signs = _unpack(code[1], 2, count)
        levels = code[2].astype(jnp.float32)
        values = jnp.take_along_axis(levels, signs & 1, axis=1) * (1 - 2 * (signs >> 1))
    places = _unpack(code[0], _POSITION_BITS, count)
    rows = jnp.zeros((chunks, length), jnp.float32)
    rows = rows.at[jnp.arange(chunks)[:, None], places].set(values, unique_indices=True)
    return rows.reshape(-1)[: like.size].reshape(like.shape)


def _pack(codes: Array, bits: int) -> Array:
    """Pack the lowest ``bits`` of each row's integers into bytes."""
    spread = codes[..., None] >> jnp.arange(bits, dtype=codes.dtype) & 1
    return jnp.packbits(spread.reshape(len(codes), -1).astype(bool), axis=1)


def _unpack(packed: Array, bits: int, count: int) -> Array:
    spread = jnp.unpackbits(packed, axis=1, count=bits * count).astype(jnp.int32)
    spread = spread.reshape(len(packed), count, bits)
    return (spread << jnp.arange(bits, dtype=jnp.int32)).sum(axis=2, dtype=jnp.int32)

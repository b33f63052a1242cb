"""ragged_alltoall: exchanges slices of dynamic offsets and sizes, as jax.lax.ragged_all_to_all.

Operands are (operand, output, input_offsets, send_sizes, recv_offsets, recv_sizes), one offset and
size per rank. Unlike jax.lax's ``output_offsets``, ``recv_offsets`` are offsets in this rank's own
output, so the transpose needs no further exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxccomp import _jax
from jaxccomp._call import Call
from jaxccomp._primitives import located, lowering
from jaxccomp._traced import stacked

Array = Any


def bind(call: Call, operands: Sequence[Array]) -> Array:
    """Run or stage the exchange; the result has the shape of ``output``."""
    axes = frozenset(call.axes).union(*map(_jax.varying, operands))
    return PRIMITIVE.bind(*(_jax.vary(x, axes) for x in operands), call=located(call))[0]


def _abstract_eval(operand: Any, output: Any, *tables: Any, call: Call) -> tuple[list[Any], Any]:
    result = _jax.result_aval(output, output.shape, (), slice(None))
    return [result], _jax.axis_effects(call.axes, "jaxccomp.ragged_alltoall")


def _jvp(primals: Any, tangents: Any, *, call: Call) -> tuple[list[Array], list[Any]]:
    result = bind(call, primals)
    if all(map(_jax.is_zero, tangents[:2])):
        return [result], [_jax.zero_tangent(result)]
    moved = [_jax.instantiate(t) for t in tangents[:2]]
    return [result], [bind(call, [*moved, *primals[2:]])]


def _transpose(cotangents: Any, operand: Any, output: Any, *tables: Any, call: Call) -> list[Any]:
    (ct,) = cotangents
    wanted = [_jax.is_undefined(x) for x in (operand, output)]
    nothing = [None] * len(tables)
    if _jax.is_zero(ct):
        data = (operand, output)
        zeros = [_jax.zero_cotangent(x) if _jax.is_undefined(x) else None for x in data]
        return [*zeros, *nothing]
    input_offsets, send_sizes, recv_offsets, recv_sizes = tables
    back = jnp.zeros(_jax.shape_of(operand), ct.dtype)
    to_operand = bind(
        call.of_cotangents(), [ct, back, recv_offsets, recv_sizes, input_offsets, send_sizes]
    )
    row = jnp.arange(ct.shape[0])[:, None]
    written = ((recv_offsets <= row) & (row < recv_offsets + recv_sizes)).any(axis=1)
    to_output = jnp.where(written.reshape(-1, *[1] * (ct.ndim - 1)), jnp.zeros_like(ct), ct)
    return [to_operand if wanted[0] else None, to_output if wanted[1] else None, *nothing]


def _batch(
    axis_data: Any, values: Sequence[Array], dims: Sequence[int | None], *, call: Call
) -> tuple[list[Array], list[int | None]]:
    named = axis_data.name in call.axes
    if not named and all(dim is None for dim in dims):
        return [bind(call, values)], [None]
    if named or any(dim is not None for dim in dims[2:]):
        values = [_batched(x, dim, axis_data.size, 0) for x, dim in zip(values, dims, strict=True)]
        if not named:
            return [lax.map(lambda operands: bind(call, operands), tuple(values))], [0]
        if len(call.axes) > 1 or call.groups is not None:
            raise NotImplementedError(
                "ragged_all_to_all along an axis of vmap takes neither further axes nor groups."
            )
        operand, output, input_offsets, send_sizes, recv_offsets, recv_sizes = values
        blocks = jax.vmap(stacked.cut_ragged)(operand, input_offsets, send_sizes)
        received = jnp.swapaxes(blocks, 0, 1)
        return [jax.vmap(stacked.place_ragged)(output, received, recv_offsets, recv_sizes)], [0]
    # Offsets count rows, so rows stay in front: the batch dimension becomes a part of each row.
    data = [
        _batched(x, dim, axis_data.size, 1) for x, dim in zip(values[:2], dims[:2], strict=True)
    ]
    return [bind(call, [*data, *values[2:]])], [1]


def _batched(x: Array, dim: int | None, size: int, place: int) -> Array:
    if dim is None:
        x = jnp.broadcast_to(jnp.expand_dims(x, place), (*x.shape[:place], size, *x.shape[place:]))
        return x
    return jnp.moveaxis(x, dim, place)


PRIMITIVE = _jax.new_primitive(
    "jaxccomp_ragged_alltoall",
    abstract_eval=_abstract_eval,
    jvp=_jvp,
    transpose=_transpose,
    batcher=_batch,
    lowering=lowering.lower,
)

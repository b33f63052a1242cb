"""The batching rule (``vmap``) of collectives.

If the batched axis is not an axis of the call, each leaf keeps its batch dimension. A leaf without
a batch dimension is sent once. If it is an axis of the call, one array holds the values of all
ranks along this axis, so the operation is computed locally. Further axes of the call still need
communication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxccomp import _jax
from jaxccomp._call import (
    Call,
    add_residuals,
    batch_dimensions,
    references_each,
    split_likes,
    split_references,
)
from jaxccomp._primitives import bind
from jaxccomp._traced import stacked

Array = Any


def batch(
    axis_data: Any, values: Sequence[Array], dims: Sequence[int | None], *, call: Call
) -> tuple[list[Array], list[int | None]]:
    """The batching rule of every collective."""
    if axis_data.name in call.axes:
        if call.collective == "bcast" and call.groups is None:
            return _bcast_along(axis_data, call, values, dims)
        if call.adds_residual:
            values, dims = _paired(call, axis_data.size, values, dims)
            dims = split_references(call, dims)[0]
            call, values = add_residuals(call, values)
        values, dims = (split_references(call, each)[0] for each in (values, dims))
        exact = call
        if call.has_ref or call.feedback:
            # Delta bases and residuals belong to one rank's values, but here values of several
            # ranks are combined before they are sent: send them raw.
            exact = call.replace(has_ref=False, feedback=False, codec="raw")
        pairs = [_along(axis_data, exact, x, dim) for x, dim in zip(values, dims, strict=True)]
        if call.feedback:
            pairs += [(jnp.zeros_like(x), dim) for x, dim in zip(values, dims, strict=True)]
        return [x for x, _ in pairs], [dim for _, dim in pairs]
    if call.has_ref or call.adds_residual:
        values, dims = _paired(call, axis_data.size, values, dims)
    moved, places, result_dims = [], [], []
    for x, dim in zip(values, dims, strict=True):
        if dim is None:
            place = result_dim = None
        else:
            place, result_dim = batch_dimensions(call, dim)
            x = jnp.moveaxis(x, dim, place)
        moved.append(x)
        places.append(place)
        result_dims.append(result_dim)
    result_dims = list(split_likes(call, split_references(call, result_dims)[0])[1])
    lost_dims = split_references(call, places)[0] if call.feedback else []
    return bind(call, moved), [*result_dims, *lost_dims] + [None] * call.status


def _paired(
    call: Call, size: int, values: Sequence[Array], dims: Sequence[int | None]
) -> tuple[list[Array], list[int | None]]:
    """Give a value and its delta bases or residual the same batch dimension, if any has one."""
    values, dims = list(values), list(dims)
    sent = len(values) // (1 + references_each(call))
    # Delta bases of an allgather have the shape of its results: ranks come first.
    behind = int(call.collective == "allgather")
    for first in range(sent):
        places = {i: behind for i in range(first + sent, len(values), sent)} | {first: 0}
        before = {None if (dim := dims[i]) is None else dim - place for i, place in places.items()}
        if len(before) == 1:
            continue
        for i, place in places.items():
            values[i], dims[i] = jnp.moveaxis(_leading(size, values[i], dims[i]), 0, place), place
    return values, dims


def _leading(size: int, x: Array, dim: int | None) -> Array:
    if dim is None:
        return jnp.broadcast_to(x, (size, *x.shape))
    return jnp.moveaxis(x, dim, 0)


def _bcast_along(
    axis_data: Any, call: Call, values: Sequence[Array], dims: Sequence[int | None]
) -> tuple[list[Array], list[int | None]]:
    """Take the root's row, and broadcast it along the call's other axes, if any."""
    place = call.axes.index(axis_data.name)
    others = call.axes[:place] + call.axes[place + 1 :]
    minor = _size(call.axes[place + 1 :])
    major_and_row, last = divmod(call.root, minor)
    major, row = divmod(major_and_row, axis_data.size)
    mine = [
        x if dim is None else lax.index_in_dim(x, row, dim, keepdims=False)
        for x, dim in zip(values, dims, strict=True)
    ]
    if others:
        root = major * minor + last
        results = bind(call.replace(axes=others, size=_size(others), root=root), mine)
    else:
        results = list(split_references(call, mine)[0])
    return results, [None] * len(results)


def _along(axis_data: Any, call: Call, x: Array, dim: int | None) -> tuple[Array, int | None]:
    x = _leading(axis_data.size, x, dim)
    others = tuple(axis for axis in call.axes if axis != axis_data.name)
    if not others:
        result, same = stacked.run(call, x)
        return result, None if same else 0
    if call.collective == "allreduce" and call.groups is None:
        part = stacked.reduce_rows(call.reduce_op, x)
        return bind(call.replace(axes=others, size=_size(others)), [part])[0], None
    return _gathered(axis_data, call, x, others)


def _gathered(
    axis_data: Any, call: Call, x: Array, others: tuple[Any, ...]
) -> tuple[Array, int | None]:
    """Gather the rows of all ranks over the call's other axes; return the local ranks' results."""
    gather = Call(
        "allgather",
        _size(others),
        axes=others,
        backend=call.backend,
        codec=call.codec,
        cotangent_codec=call.cotangent_codec,
    )
    place = call.axes.index(axis_data.name)
    major, minor = _size(call.axes[:place]), _size(call.axes[place + 1 :])
    everything = bind(gather, [x])[0]
    everything = everything.reshape(major, minor, *x.shape).swapaxes(1, 2)
    result, same = stacked.run(call, everything.reshape(-1, *x.shape[1:]))
    if same:
        return result, None
    result = result.reshape(major, axis_data.size, minor, *result.shape[1:]).swapaxes(1, 2)
    result = result.reshape(major * minor, axis_data.size, *result.shape[3:])
    return lax.dynamic_index_in_dim(result, lax.axis_index(others), keepdims=False), 0


def _size(axes: Sequence[Any]) -> int:
    return math.prod(_jax.axes_in_scope()[axis] for axis in axes)

"""Gathers, exchanges and permutations with the interface of ``jax.lax``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _jax, errors
from jaxccomp._api.arguments import AxisName, Groups, make_call
from jaxccomp._api.lax_reductions import (
    blocks,
    dimension_of,
    has_partial_sums,
    merge,
    names_of,
    only_raw,
    ragged_table,
    rank_of,
)
from jaxccomp._api.options import How, parallel
from jaxccomp._api.pytree import apply, as_array, is_float0, map_values, unpacked
from jaxccomp._primitives import ragged


@parallel
def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups | None = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
    **how: Unpack[How],
) -> Any:
    """Gathers all ranks' values, stacked or concatenated, as ``jax.lax.all_gather``.

    On the wire: each rank receives n - 1 blocks, each encoded once by its owner.

    Args:
      x: pytree of arrays of any shape.
      axis_name: one axis or a tuple of them.
      axis_index_groups: lists of indices along the axis that gather among themselves.
      axis: the dimension of the result along which the ranks' values are stacked.
      tiled: whether to concatenate along the existing dimension ``axis``.
      to: the type of the result over the axis: "varying", "invarying" or "reduced".

    Returns:
      Arrays with a new dimension of size n at ``axis``, or with that dimension n times as long.

    Example:
      >>> jaxccomp.lax.all_gather(x, "data", tiled=True)                 # doctest: +SKIP
    """
    if to not in ("varying", "invarying", "reduced"):
        raise errors.unknown("value of to=", to, ("varying", "invarying", "reduced"))
    names = names_of(axis_name)
    if not names:
        return x
    if to == "reduced" or has_partial_sums(x):
        only_raw("all_gather", how)
        return jax.lax.all_gather(
            x, names, axis_index_groups=axis_index_groups, axis=axis, tiled=tiled, to=to
        )
    if to == "invarying" and axis_index_groups is not None:
        raise NotImplementedError('all_gather: to="invarying" does not go with axis_index_groups.')
    call = make_call(
        "allgather", "all_gather", axis_name=names, axis_index_groups=axis_index_groups, **how
    )
    call = call.replace(invariant=call.invariant and to == "invarying")

    def arrange(rows: Any) -> Any:
        place = dimension_of("all_gather", "axis", axis, rows.ndim - tiled)
        rows = jnp.moveaxis(rows, 0, place)
        return merge(rows, place) if tiled else rows

    return map_values(arrange, apply(call, x))


@parallel
def psum_scatter(
    x: Any,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Groups | None = None,
    tiled: bool = False,
    **how: Unpack[How],
) -> Any:
    """Returns this rank's part of the sum over an axis, as ``jax.lax.psum_scatter``.

    On the wire: each rank sends n - 1 blocks.

    Args:
      x: pytree of arrays whose dimension ``scatter_dimension`` is n long, or with ``tiled`` a
        multiple of n.
      axis_name: one axis or a tuple of them.
      scatter_dimension: the dimension to split into parts.
      axis_index_groups: lists of indices along the axis that sum among themselves.
      tiled: whether to keep the dimension, n times shorter; otherwise it is removed.

    Returns:
      Arrays without that dimension, or with it n times shorter.

    Example:
      >>> jaxccomp.lax.psum_scatter(grads, "data", tiled=True)           # doctest: +SKIP
    """
    names = names_of(axis_name)
    if not names:
        return x
    if has_partial_sums(x):
        only_raw("psum_scatter", how)
        return jax.lax.psum_scatter(
            x,
            names,
            scatter_dimension=scatter_dimension,
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )
    call = make_call(
        "reduce_scatter",
        "psum_scatter",
        axis_name=names,
        axis_index_groups=axis_index_groups,
        **how,
        op="sum",
    )

    def split(leaf: Any) -> Any:
        leaf = as_array("psum_scatter", leaf)
        return blocks("psum_scatter", leaf, scatter_dimension, call.size, tiled)

    return apply(call, map_values(split, x))


@parallel
def all_to_all(
    x: Any,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Groups | None = None,
    tiled: bool = False,
    **how: Unpack[How],
) -> Any:
    """Splits along one dimension, sends a part to each rank, and joins along another.

    As ``jax.lax.all_to_all``. On the wire: each rank sends and receives n - 1 blocks.

    Args:
      x: pytree of arrays whose dimension ``split_axis`` is n long, or with ``tiled`` a multiple.
      axis_name: one axis or a tuple of them.
      split_axis: the dimension to split.
      concat_axis: the dimension of the result along which the received parts are joined.
      axis_index_groups: lists of indices along the axis that exchange among themselves.
      tiled: whether to shorten and lengthen these dimensions instead of removing and adding them.

    Returns:
      Arrays of shape ``np.insert(np.delete(x.shape, split_axis), concat_axis, n)``; with ``tiled``
      of the shape of ``x`` with ``split_axis`` n times shorter and ``concat_axis`` n times longer.

    Example:
      >>> jaxccomp.lax.all_to_all(tokens, "experts", 0, 0, tiled=True)   # doctest: +SKIP
    """
    names = names_of(axis_name)
    call = make_call(
        "alltoall", "all_to_all", axis_name=names, axis_index_groups=axis_index_groups, **how
    )

    def split(leaf: Any) -> Any:
        return blocks("all_to_all", as_array("all_to_all", leaf), split_axis, call.size, tiled)

    def arrange(rows: Any) -> Any:
        place = dimension_of("all_to_all", "concat_axis", concat_axis, rows.ndim - tiled)
        rows = jnp.moveaxis(rows, 0, place)
        return merge(rows, place) if tiled else rows

    return map_values(arrange, apply(call, map_values(split, x)))


@parallel
def ppermute(
    x: Any,
    axis_name: AxisName,
    perm: Sequence[tuple[int, int]],
    **how: Unpack[How],
) -> Any:
    """Sends each rank's values to another, as ``jax.lax.ppermute``.

    On the wire: the values once.

    Args:
      x: pytree of arrays of any shape.
      axis_name: one axis or a tuple of them.
      perm: pairs of source and destination; each rank at most once as a source and as a
        destination.

    Returns:
      Same shapes; zeros on ranks that are no destination.

    Example:
      >>> jaxccomp.lax.ppermute(x, "data", [(0, 1), (1, 0)])             # doctest: +SKIP
    """
    call = make_call("permute", "ppermute", axis_name=names_of(axis_name), **how)
    pairs = [
        (rank_of(source, call.size), rank_of(destination, call.size))
        for source, destination in perm
    ]
    for side in ([source for source, _ in pairs], [destination for _, destination in pairs]):
        if len(set(side)) < len(side):
            raise errors.InvalidArgumentError(
                f"ppermute sources and destinations must be unique, got {perm}."
            )
    return apply(call.replace(pairs=tuple(rank for pair in pairs for rank in pair)), x)


@parallel
def pbroadcast(
    x: Any,
    axis_name: AxisName,
    source: Any,
    *,
    ref: Any = None,
    **how: Unpack[How],
) -> Any:
    """Sends one rank's values to all, as ``jax.lax.pbroadcast`` (here also on CPU).

    On the wire: each rank receives the values once, if ``source`` is static when tracing.

    Args:
      x: pytree of arrays of any shape.
      axis_name: one axis or a tuple of them.
      source: the rank whose values are sent: an integer, or an int32 scalar array that is equal on
        all ranks.
      ref: as for ``jaxccomp.bcast``: a pytree like ``x`` with the same values on all ranks; the
        difference to it is sent. It needs a static ``source``.

    Returns:
      Same shapes, with a varying type; ``jaxccomp.bcast`` returns an invariant type.

    Example:
      >>> jaxccomp.lax.pbroadcast(x, "data", 0)                          # doctest: +SKIP
    """
    names = names_of(axis_name)
    if _jax.is_tracer(source):
        if ref is not None:
            raise errors.InvalidArgumentError(
                "pbroadcast: ref= needs a source that is a Python integer known when tracing, not "
                f"{source!r}."
            )
        mine = jax.lax.axis_index(names) == source
        x = map_values(lambda leaf: jnp.where(mine, leaf, jnp.zeros_like(leaf)), x)
        call = make_call("allreduce", "pbroadcast", axis_name=names, op="sum", **how)
        return apply(call.replace(invariant=False), x)
    call = make_call(
        "bcast", "pbroadcast", axis_name=names, root=source, has_ref=ref is not None, **how
    )
    return apply(call.replace(invariant=False), x, ref)


@parallel
def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: AxisName,
    axis_index_groups: Groups | None = None,
    **how: Unpack[How],
) -> Any:
    """Exchanges slices with dynamic offsets and sizes, as ``jax.lax.ragged_all_to_all``.

    On the wire: the slices, and one block of offsets per rank. With ``backend="xla"`` slices
    are padded to the length of ``operand``.

    Args:
      operand: array of shape ``(N, *s)`` with the rows to send.
      output: array of shape ``(M, *s)`` that received rows are written to.
      input_offsets: integers of shape ``(K,)``, K a multiple of n: the slices' first rows in
        ``operand``, first the slices for rank 0. Slices must not overlap if a derivative is taken.
      send_sizes: integers of shape ``(K,)``: the number of rows of each slice.
      output_offsets: integers of shape ``(K,)``: the slices' first rows in their receivers'
        ``output``.
      recv_sizes: integers of shape ``(K,)``: rows to receive, first from rank 0.
      axis_name: one axis or a tuple of them.
      axis_index_groups: lists of indices along the axis that exchange among themselves.

    Returns:
      ``output`` with the received rows written at their offsets.
    """
    options: Any = {"axis_name": names_of(axis_name), "axis_index_groups": axis_index_groups}
    call = make_call("ragged_alltoall", "ragged_all_to_all", **options, **how)
    given = {
        "input_offsets": input_offsets,
        "send_sizes": send_sizes,
        "output_offsets": output_offsets,
        "recv_sizes": recv_sizes,
    }
    tables = {name: ragged_table(name, value, call.size) for name, value in given.items()}
    if len({table.shape for table in tables.values()}) > 1:
        shapes = {name: jnp.shape(value) for name, value in given.items()}
        raise errors.InvalidArgumentError(f"ragged_all_to_all: shapes must be equal, got {shapes}.")
    # Only the senders know the offsets in this rank's output.
    exchange = make_call("alltoall", **options, backend=how.get("backend", "auto"))
    offsets = apply(exchange, tables["output_offsets"])
    operand = as_array("ragged_all_to_all", operand)
    output = as_array("ragged_all_to_all", output)
    dtype = output.dtype
    if is_float0(output):
        return output
    if unpacked(dtype) != dtype:
        operand, output = operand.astype(unpacked(dtype)), output.astype(unpacked(dtype))
    for i in range(offsets.shape[1]):
        output = ragged.bind(
            call,
            [
                operand,
                output,
                tables["input_offsets"][:, i],
                tables["send_sizes"][:, i],
                offsets[:, i],
                tables["recv_sizes"][:, i],
            ],
        )
    return output.astype(dtype)

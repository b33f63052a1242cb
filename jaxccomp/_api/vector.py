"""Collectives with block sizes that differ by rank (v-variants).

Blocks are rows along axis 0. ``counts`` has the number of rows of each rank; it is static and the
same on all ranks. Between processes (``comm=``) shapes are exact. Along an axis (``axis_name=``)
all ranks must have the same shapes: arrays have as many rows as the largest block. Extra rows are
ignored in operands and zero in results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, Unpack

from jaxccomp._api.arguments import make_call, vector_counts
from jaxccomp._api.options import Options, operation
from jaxccomp._api.pytree import apply

T = TypeVar("T")


@operation
def allgatherv(x: T, counts: Sequence[int], **options: Unpack[Options]) -> T:
    """Gather the rows of all ranks on all ranks, in rank order.

    On the wire: each rank receives the others' rows, encoded once by their owner.

    Args:
      x: pytree of arrays of shape ``(counts[rank], *s)``; along an axis ``(max(counts), *s)``.
      counts: the number of rows of each rank.

    Returns:
      Arrays of shape ``(sum(counts), *s)``; the same on all ranks.

    Example:
      >>> rows = jaxccomp.allgatherv(x, counts=[3, 1, 2])                # doctest: +SKIP
    """
    call = make_call("allgatherv", **options)
    return apply(call.with_counts(vector_counts("allgatherv", counts, call.size)), x)


@operation
def gatherv(x: T, counts: Sequence[int], root: int = 0, **options: Unpack[Options]) -> T:
    """Gather the rows of all ranks on the root, in rank order.

    On the wire: the root receives the others' rows.

    Args:
      x: pytree of arrays of shape ``(counts[rank], *s)``; along an axis ``(max(counts), *s)``.
      counts: the number of rows of each rank.
      root: the rank that gets the rows.

    Returns:
      Arrays of shape ``(sum(counts), *s)``; zeros on other ranks.

    Example:
      >>> rows = jaxccomp.gatherv(x, counts=[3, 1, 2], root=0)           # doctest: +SKIP
    """
    call = make_call("gatherv", root=root, **options)
    return apply(call.with_counts(vector_counts("gatherv", counts, call.size)), x)


@operation
def scatterv(x: T, counts: Sequence[int], root: int = 0, **options: Unpack[Options]) -> T:
    """Send each rank its rows of the root's values.

    On the wire: the root sends the others' rows.

    Args:
      x: pytree of arrays of shape ``(sum(counts), *s)``; on other ranks only shapes matter.
      counts: the number of rows that each rank gets.
      root: the rank that sends.

    Returns:
      Arrays of shape ``(counts[rank], *s)``; along an axis ``(max(counts), *s)``.

    Example:
      >>> mine = jaxccomp.scatterv(rows, counts=[3, 1, 2], root=0)       # doctest: +SKIP
    """
    call = make_call("scatterv", root=root, **options)
    return apply(call.with_counts(vector_counts("scatterv", counts, call.size)), x)


@operation
def alltoallv(x: T, counts: Sequence[Sequence[int]], **options: Unpack[Options]) -> T:
    """Send ``counts[i][j]`` rows from each rank i to each rank j.

    On the wire: each rank sends and receives the rows that ``counts`` lists for it.

    Args:
      x: pytree of arrays of shape ``(sum(counts[rank]), *s)``, the rows for rank 0 first; along an
        axis the number of rows is the maximum of all ranks.
      counts: n lists of n: ``counts[i][j]`` rows go from rank i to rank j.

    Returns:
      Arrays with the rows for this rank, in the order of the source ranks; along an axis the number
      of rows is the maximum of all ranks.

    Example:
      >>> mine = jaxccomp.alltoallv(x, counts=[[1, 2], [0, 3]])          # doctest: +SKIP
    """
    call = make_call("alltoallv", **options)
    return apply(call.with_counts(vector_counts("alltoallv", counts, call.size)), x)

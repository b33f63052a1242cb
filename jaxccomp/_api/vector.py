"""Collectives whose blocks differ in size from rank to rank.

Blocks are rows along axis 0. ``counts`` says how many each rank has and is the same, static, on all
ranks. Between processes (``comm=``) shapes are exact. Along an axis (``axis_name=``) all ranks must
have the same shapes: operands and results have the rows of the largest, and a rank's rows beyond
its own are ignored, or zero.
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
    """Gives all ranks the rows of each, one rank's after the other's.

    On the wire: each rank receives the others' rows, encoded once by their owner.

    Args:
      x: pytree of arrays of shape ``(counts[rank], *s)``; along an axis ``(max(counts), *s)``.
      counts: how many rows each rank has.

    Returns:
      Arrays of shape ``(sum(counts), *s)``; the same on all ranks.

    Example:
      >>> rows = jaxccomp.allgatherv(x, counts=[3, 1, 2])                # doctest: +SKIP
    """
    call = make_call("allgatherv", **options)
    return apply(call.with_counts(vector_counts("allgatherv", counts, call.size)), x)


@operation
def gatherv(x: T, counts: Sequence[int], root: int = 0, **options: Unpack[Options]) -> T:
    """Gives the root the rows of each rank, one rank's after the other's.

    On the wire: the root receives the others' rows.

    Args:
      x: pytree of arrays of shape ``(counts[rank], *s)``; along an axis ``(max(counts), *s)``.
      counts: how many rows each rank has.
      root: the rank that gets them.

    Returns:
      Arrays of shape ``(sum(counts), *s)``; zeros off the root.

    Example:
      >>> rows = jaxccomp.gatherv(x, counts=[3, 1, 2], root=0)           # doctest: +SKIP
    """
    call = make_call("gatherv", root=root, **options)
    return apply(call.with_counts(vector_counts("gatherv", counts, call.size)), x)


@operation
def scatterv(x: T, counts: Sequence[int], root: int = 0, **options: Unpack[Options]) -> T:
    """Gives each rank its rows of the root's values.

    On the wire: the root sends the others' rows.

    Args:
      x: pytree of arrays of shape ``(sum(counts), *s)``; off the root only shapes count.
      counts: how many rows each rank gets.
      root: the rank whose rows are sent.

    Returns:
      Arrays of shape ``(counts[rank], *s)``; along an axis ``(max(counts), *s)``.

    Example:
      >>> mine = jaxccomp.scatterv(rows, counts=[3, 1, 2], root=0)       # doctest: +SKIP
    """
    call = make_call("scatterv", root=root, **options)
    return apply(call.with_counts(vector_counts("scatterv", counts, call.size)), x)


@operation
def alltoallv(x: T, counts: Sequence[Sequence[int]], **options: Unpack[Options]) -> T:
    """Sends some rows to each rank, for all ranks at once.

    On the wire: each rank sends and receives the rows that ``counts`` says.

    Args:
      x: pytree of arrays of shape ``(sum(counts[rank]), *s)``, the rows for rank 0 first; along an
        axis as many rows as the rank that sends most.
      counts: n lists of n: ``counts[i][j]`` rows go from rank i to rank j.

    Returns:
      Arrays with the rows for this rank, those from rank 0 first; along an axis as many as the rank
      that receives most has.

    Example:
      >>> mine = jaxccomp.alltoallv(x, counts=[[1, 2], [0, 3]])          # doctest: +SKIP
    """
    call = make_call("alltoallv", **options)
    return apply(call.with_counts(vector_counts("alltoallv", counts, call.size)), x)

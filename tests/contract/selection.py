"""Selects the tested part of a product of operations, contexts and places, or of other parameters.

With the environment variable JAXCCOMP_TEST_ALL (`make test-all`) everything is tested. Without it,
representative operations are tested in every context at every place, and each other operation at
one place, in the basic contexts. For other parameters, each pair of values is tested (`pairwise`).
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from contract.batch import contexts
from contract.operations import Operation
from contract.transforms import Transform

T = TypeVar("T")

ALL = bool(os.environ.get("JAXCCOMP_TEST_ALL"))
# One operation that only moves values, one reduction, one for each shape of results, one with
# blocks of different sizes, one with neighbours, one in program order, and one with the signature
# of jax.lax.
REPRESENTATIVE = frozenset(
    (
        *("bcast", "allreduce-sum", "reduce_scatter-mean", "alltoall", "allgatherv", "sendrecv"),
        *("ordered-allreduce", "lax.psum"),
    )
)
BASIC = frozenset(("jit", "vmap", "grad"))


def turn_of(operation: Operation, places: Sequence[T]) -> T:
    """Returns the place of an operation that is tested at only one."""
    return places[zlib.crc32(operation.name.encode()) % len(places)]


def places_of(operation: Operation, places: Sequence[T]) -> Sequence[T]:
    """Returns the places of an operation."""
    everywhere = ALL or operation.name in REPRESENTATIVE
    return places if everywhere else [turn_of(operation, places)]


def contexts_at(operation: Operation, n: int, place: T, places: Sequence[T]) -> Sequence[Transform]:
    """Returns the contexts of an operation at a place, on n ranks."""
    found = contexts(operation, n)
    if ALL or operation.name in REPRESENTATIVE:
        return found
    if place != turn_of(operation, places):
        return []
    return [row for row in found if row.name in BASIC]


def pairwise(
    first: Iterable[Any], second: Iterable[Any], *more: Iterable[Any], everything: bool = ALL
) -> list[tuple[Any, ...]]:
    """Returns rows of a product of parameters, for ``pytest.mark.parametrize``.

    Args:
      first: the values of a parameter.
      second: the values of another parameter.
      *more: the values of further parameters.
      everything: whether to return all rows.

    Returns:
      All rows, or a few that contain each pair of values of two parameters: most errors depend on
      one value, or on two.
    """
    values = [list(each) for each in (first, second, *more)]
    rows = list(itertools.product(*(range(len(each)) for each in values)))
    chosen = rows if everything else []
    met_by = {row: set(itertools.combinations(enumerate(row), 2)) for row in rows}
    missing = set().union(*met_by.values()) if not everything else set()
    while missing:
        chosen.append(max(rows, key=lambda row: len(met_by[row] & missing)))
        missing -= met_by[chosen[-1]]
    return [tuple(each[i] for each, i in zip(values, row, strict=True)) for row in sorted(chosen)]


def together(*cases: str) -> list[tuple[str, ...]]:
    """Returns cases that one launch of ranks runs in sequence; with `ALL` each has its own launch.

    Starting ranks takes seconds, mostly to import JAX.
    """
    return [(case,) for case in cases] if ALL else [cases]

"""Which part of a product is tested: of operations, contexts and places, or of other parameters.

With the environment variable JAXCCOMP_TEST_ALL (`make test-all`) all of it. Without it, some rows
that stand for all kinds of operations are tested in every context at every place; each of the
others is tested at one place, in the contexts from which the others are built. Of other parameters
each pair of values is tested (`pairwise`).
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
# One that only moves, one that reduces, one of each shape of results, one whose blocks differ in
# size, one with neighbours, one in program order, one that is called as JAX calls it.
REPRESENTATIVE = frozenset(
    (
        *("bcast", "allreduce-sum", "reduce_scatter-mean", "alltoall", "allgatherv", "sendrecv"),
        *("ordered-allreduce", "lax.psum"),
    )
)
BASIC = frozenset(("jit", "vmap", "grad"))


def turn_of(operation: Operation, places: Sequence[T]) -> T:
    """The place at which an operation is tested that is not tested at all of them."""
    return places[zlib.crc32(operation.name.encode()) % len(places)]


def places_of(operation: Operation, places: Sequence[T]) -> Sequence[T]:
    """Where an operation is tested."""
    everywhere = ALL or operation.name in REPRESENTATIVE
    return places if everywhere else [turn_of(operation, places)]


def contexts_at(operation: Operation, n: int, place: T, places: Sequence[T]) -> Sequence[Transform]:
    """The contexts in which it is tested there, on n ranks."""
    found = contexts(operation, n)
    if ALL or operation.name in REPRESENTATIVE:
        return found
    if place != turn_of(operation, places):
        return []
    return [row for row in found if row.name in BASIC]


def pairwise(
    first: Iterable[Any], second: Iterable[Any], *more: Iterable[Any], everything: bool = ALL
) -> list[tuple[Any, ...]]:
    """Rows of a product of parameters, for ``pytest.mark.parametrize``.

    Args:
      first: the values of a parameter.
      second: those of another.
      *more: and so on.
      everything: whether all rows are wanted.

    Returns:
      All rows, or a few in which any two values of different parameters meet: most of what a row
      can find is the matter of one value, or of two.
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
    """Cases that one launch of ranks runs one after the other; with `ALL` each has its own launch.

    To start ranks takes seconds, most of them to import JAX.
    """
    return [(case,) for case in cases] if ALL else [cases]

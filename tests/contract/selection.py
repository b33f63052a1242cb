"""Which part of the product of operations, contexts and places is tested.

With the environment variable JAXCCOMP_TEST_ALL (`make test-all`) all of it. Without it, some rows
that stand for all kinds of operations are tested in every context at every place; each of the
others is tested at one place, in the contexts from which the others are built.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import TypeVar

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

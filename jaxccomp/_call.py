"""`Call`: the static parameters of one operation's primitive, and shapes derived from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

from jaxccomp import errors
from jaxccomp.comm import Communicator

T = TypeVar("T")

# Wildcards of a receive, as MPI_ANY_SOURCE and MPI_ANY_TAG. The engine uses the same numbers
# (csrc/matching/call.h); -1 is no rank, as MPI_PROC_NULL.
ANY_SOURCE = -2
ANY_TAG = -3

# Collectives whose input or output has one block per rank along a new leading axis.
_PER_RANK_IN = frozenset({"scatter", "reduce_scatter", "alltoall"})
_PER_RANK_OUT = frozenset({"allgather", "gather", "alltoall"})
_EXCHANGES = frozenset({"sendrecv", "permute"})
# Collectives whose blocks lie one after the other along axis 0, of sizes given by `counts`.
VECTOR = frozenset({"allgatherv", "gatherv", "scatterv", "reduce_scatterv", "alltoallv"})


@dataclasses.dataclass(frozen=True, repr=False)
class Call:
    """One operation, without its operands; equal by value, so that JAX's caches hit.

    Ranks are members of ``comm``, or indices along ``axes`` (within a group of ``groups``).
    """

    collective: str
    size: int
    axes: tuple[Hashable, ...] = ()
    groups: tuple[tuple[int, ...], ...] | None = None
    comm: Communicator | None = None
    reduce_op: str = ""
    root: int = -1
    codec: str = "raw"
    # The codec of cotangents: "same" (as `codec`), or a spec.
    cotangent_codec: str = "same"
    backend: str = "auto"
    algorithm: str = "auto"
    counts: tuple[int, ...] = ()
    # permute: source, destination, source, destination ...; sendrecv: destination, source (of this
    # rank, -1 for none); send: destination; recv: source.
    pairs: tuple[int, ...] = ()
    tag: int = 0
    # sendrecv: the tag of the received message; `tag` is the sent message's.
    recv_tag: int = 0
    # sendrecv: the number of trailing operands that are only templates (shape, dtype) of the
    # received values. Below 0: none; received values have the shapes and dtypes of the sent ones.
    likes: int = -1
    # recv, sendrecv: whether an int32[2] with the received message's source and tag follows the
    # results.
    status: bool = False
    reverse: bool = False
    # Whether the result is of invariant type along `axes` (shard_map with check_vma). An allreduce
    # between processes: whether its cotangents are equal on all ranks, because each rank
    # differentiates the same objective; the transpose then sends nothing (compat/mpi4jax.py).
    invariant: bool = False
    ordered: bool = False
    # Whether delta bases (`ref=`) follow the operands: values that sender and receivers hold
    # already; only the difference is sent. For `_EXCHANGES`, first the bases of the sent values,
    # then the bases of the received values.
    has_ref: bool = False
    # Whether a residual of each operand follows the results: the local compression error.
    feedback: bool = False
    # Whether residuals of the previous call follow the operands, to which they are added. They and
    # all results have the dtype of the residuals.
    adds_residual: bool = False
    # The source line of an eager call; "" in traced programs, whose equations have the line. JAX
    # compiles equal eager calls once: without this field all would report the line of the first.
    line: str = ""

    def __repr__(self) -> str:
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name != "comm" and getattr(self, field.name) != field.default
        ]
        if self.comm is not None:
            given.append(f"comm={self.comm.name}")
        return f"Call({', '.join(given)})"

    def replace(self, **changes: object) -> Call:
        return dataclasses.replace(self, **changes)

    def at(self, line: str) -> Call:
        """Return a copy with this source line; for eager calls, `replace` is too slow."""
        moved = object.__new__(Call)
        moved.__dict__.update(self.__dict__, line=line)
        return moved

    def of_cotangents(self) -> Call:
        """Return the call for cotangents: its codec is `cotangent_codec`."""
        if self.cotangent_codec == "same":
            return self
        return self.replace(codec=self.cotangent_codec)

    def with_counts(self, counts: tuple[int, ...]) -> Call:
        """Return the v-variant with these block sizes.

        Between processes, shapes and therefore compiled programs differ by rank. Only the order of
        calls in the program's text is the same on all ranks, so the engine matches these calls in
        program order.
        """
        return self.replace(counts=counts, ordered=self.ordered or self.comm is not None)


def split_references(call: Call, operands: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Return the operands to send, and their delta bases or residuals, if any."""
    sent = len(operands) // (1 + references_each(call))
    return operands[:sent], operands[sent:]


def reduced_values(call: Call, operands: Sequence[T]) -> Sequence[T]:
    """Return values with the dtypes of the results: the residuals if given, else the operands."""
    sent, others = split_references(call, operands)
    return others if call.adds_residual else sent


def references_each(call: Call) -> int:
    """Return the number of delta bases, or of residuals of the previous call, per operand."""
    if call.adds_residual:
        return 1
    return (2 if call.collective in _EXCHANGES else 1) if call.has_ref else 0


def add_residuals(call: Call, operands: Sequence[Any]) -> tuple[Call, list[Any]]:
    """Add the residuals to the operands; return the call without residuals, and the sums."""
    values, residuals_in = split_references(call, operands)
    sums = [
        x.astype(residual.dtype) + residual
        for x, residual in zip(values, residuals_in, strict=True)
    ]
    return call.replace(adds_residual=False), sums


def has_row_per_rank(call: Call) -> bool:
    """Return whether operands have one row (a block) per rank."""
    return call.collective in _PER_RANK_IN


def reference_shape(call: Call, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of an operand's delta bases."""
    return result_shape(call, shape) if call.collective == "allgather" else tuple(shape)


def split_likes(call: Call, operands: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Return the operands to send, and the templates of the results."""
    if call.likes < 0:
        return operands, operands
    sent = len(operands) - call.likes
    return operands[:sent], operands[sent:]


def with_likes(call: Call, sent: int, likes: int) -> Call:
    """Return a sendrecv of `sent` values with `likes` templates; a count of 0 is no message."""
    dest, source = call.pairs
    pairs = (dest if sent else -1, source if likes else -1)
    return call.replace(pairs=pairs, likes=likes)


def rows(call: Call) -> tuple[int, int]:
    """Return the numbers of rows along axis 0 of a v-variant's operand and result on this rank.

    With a communicator these are this rank's counts. Along an axis all ranks have the largest
    count, because their shapes must be equal; rows beyond a rank's own count are zero.
    """
    if call.collective == "alltoallv":
        n = call.size
        sent = [sum(call.counts[i * n : (i + 1) * n]) for i in range(n)]
        received = [sum(call.counts[i::n]) for i in range(n)]
        return _own(call, sent), _own(call, received)
    everything, mine = sum(call.counts), _own(call, call.counts)
    if call.collective in ("allgatherv", "gatherv"):
        return mine, everything
    return everything, mine


def _own(call: Call, counts: Sequence[int]) -> int:
    return max(counts) if call.comm is None else counts[call.comm.rank]


def result_shape(call: Call, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a result; raise if the operand's shape is invalid for the call."""
    shape = tuple(shape)
    if call.collective in VECTOR:
        taken, given = rows(call)
        if not shape or shape[0] != taken:
            raise errors.InvalidArgumentError(
                f"{call.collective}: with counts {_table(call)} the operand must have {taken} rows "
                f"along axis 0, but its shape is {shape}."
            )
        return (given, *shape[1:])
    if call.collective in _PER_RANK_IN and (not shape or shape[0] != call.size):
        raise errors.InvalidArgumentError(
            f"{call.collective}: the operand must have one row per rank along axis 0, that is "
            f"{call.size} rows, but its shape is {shape}."
        )
    block = shape[1:] if call.collective in _PER_RANK_IN else shape
    return (call.size, *block) if call.collective in _PER_RANK_OUT else block


def kept_dimensions(call: Call) -> slice:
    """Return the dimensions of the operand that become the trailing dimensions of the result."""
    return slice(1, None) if call.collective in _PER_RANK_IN | VECTOR else slice(None)


def batch_dimensions(call: Call, dim: int) -> tuple[int, int]:
    """Return the positions of a batch dimension in operand and result, if found at ``dim``."""
    if call.collective in VECTOR:
        return 1, 1
    if call.collective in _PER_RANK_IN:
        return 1, int(call.collective in _PER_RANK_OUT)
    return dim, dim + int(call.collective in _PER_RANK_OUT)


def _table(call: Call) -> list[list[int]] | list[int]:
    if call.collective != "alltoallv":
        return list(call.counts)
    n = call.size
    return [list(call.counts[i * n : (i + 1) * n]) for i in range(n)]

"""The engine's schedules as data: the tasks of a rank.

An algorithm is a pure function of rank, ranks and sizes; nothing here communicates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxccomp import config, errors
from jaxccomp._native import algorithms, engine

# Collectives whose blocks all have one size, as `make` requires.
COLLECTIVES = (
    *("bcast", "allreduce", "reduce", "allgather", "gather", "scatter", "reduce_scatter"),
    *("alltoall", "scan", "exscan"),
)


@dataclasses.dataclass(frozen=True)
class Slot:
    """Bytes ``begin`` to ``end`` of a block of one of the address spaces.

    Attributes:
      space: "input", "output", "scratch" (temporary values), "code" (encoded values; the range is
        the raw values' range), "residual" (compression errors) or "residual_in" (the previous
        call's compression errors).
      block: the rank of an input or output block (0 if there is only one), or the number of a
        temporary block.
      begin: first byte. A scratch block begins at the offset given in `Schedule.scratch`.
      end: one past the last byte.
    """

    space: str
    block: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
      kind: "send", "recv", "copy", "merge", "encode", "decode", or "residual" (adds values minus
        their decoded code).
      lane: its lane (chunk number).
      peer: the rank at the other end of a transfer.
      tag: unique among the messages between two ranks.
      final: whether a merge is the last one of its values.
      dst: the range that it writes.
      sources: the ranges that it reads; a merge combines them in this order.
      deps: numbers of the tasks that it waits for.
    """

    kind: str
    lane: int
    peer: int
    tag: int
    final: bool
    dst: Slot
    sources: tuple[Slot, ...]
    deps: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The tasks of one rank in a collective; ``str()`` has a line for each task.

    Attributes:
      algorithm: the algorithm's name; for "auto", the name of the default.
      tasks: in an order that their dependencies allow.
      scratch: begin and end of each scratch block.
      text: one line per task.
    """

    algorithm: str
    tasks: tuple[Task, ...]
    scratch: tuple[tuple[int, int], ...]
    text: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self.text


def make(
    collective: str,
    algorithm: str = "auto",
    *,
    rank: int,
    ranks: int,
    block_bytes: int,
    root: int = 0,
    chunk_bytes: int | None = None,
    encoded: bool = False,
    lossless: bool = False,
    feedback: bool = False,
    hosts: Sequence[int] = (),
    coded: bool | None = None,
) -> Schedule:
    """Returns the schedule of ``rank``.

    Args:
      collective: one of `COLLECTIVES`.
      algorithm: as in operations, such as "ring" or "two_shot:chunk=65536".
      rank: the rank.
      ranks: the number of ranks.
      block_bytes: size of each block: of a rank's operand, or of one row if the operand has a row
        per rank.
      root: the root of a rooted collective.
      chunk_bytes: default: the option of that name.
      encoded: whether there is a codec.
      lossless: with ``encoded``, whether it is lossless: the encoder then keeps its own values
        instead of decoding.
      feedback: as in `allreduce_with_feedback` and `reduce_scatter_with_feedback`; needs
        ``encoded``.
      hosts: for each rank, a number for its host; default: all ranks on different hosts.
      coded: deprecated; the name of ``encoded`` in version 0.1.

    Raises:
      InvalidArgumentError: for arguments that are out of range.
      UnknownNameError: for a collective or algorithm that does not exist.
      ScheduleError: if a registered algorithm's schedules are wrong.
      EngineUnavailableError: without the native engine.

    Example:
      >>> print(jaxccomp.schedules.make("bcast", "chain", rank=1, ranks=3, block_bytes=4))
      0 recv output0[0,4) from 0 tag 0
      1 send output0[0,4) to 2 tag 0 after 0
      <BLANKLINE>
    """
    if coded is not None:
        errors.warn_renamed("make(coded=)", "encoded=")
        encoded = coded
    if collective not in COLLECTIVES:
        raise errors.unknown("collective with blocks of one size:", collective, COLLECTIVES)
    for name, value, first, end in (
        ("ranks", ranks, 1, 1 << 20),
        ("rank", rank, 0, ranks),
        ("root", root, 0, ranks),
        ("block_bytes", block_bytes, 0, 1 << 50),
        ("chunk_bytes", chunk_bytes or 64, 64, 1 << 50),
    ):
        if not first <= value < end:
            raise errors.InvalidArgumentError(f"{name} must be in {first}..{end - 1}, not {value}.")
    if feedback and not (encoded and collective in ("allreduce", "reduce_scatter")):
        raise errors.InvalidArgumentError("feedback is of an encoded allreduce or reduce_scatter.")
    if len(hosts) not in (0, ranks):
        raise errors.InvalidArgumentError(
            f"hosts has an entry for every rank, that is {ranks}, not {len(hosts)}."
        )
    problem = algorithms.Problem(
        ranks, block_bytes, root=root, chunk_bytes=chunk_bytes, encoded=encoded, feedback=feedback
    )
    algorithm = algorithms.for_engine(collective, algorithm, problem)
    try:
        made = engine.load().make_schedule(
            collective,
            algorithm,
            rank,
            ranks,
            root,
            block_bytes,
            chunk_bytes or config.get("chunk_bytes"),
            encoded,
            lossless,
            feedback,
            list(hosts),
        )
    except ValueError as error:
        raise errors.InvalidArgumentError(str(error)) from None
    tasks = tuple(
        Task(
            **{
                **row,
                "dst": Slot(*row["dst"]),
                "sources": tuple(Slot(*slot) for slot in row["sources"]),
                "deps": tuple(row["deps"]),
            }
        )
        for row in made["tasks"]
    )
    return Schedule(made["algorithm"], tasks, tuple(made["scratch"]), made["text"])

"""`Builder`, with which users write schedules: it collects the tasks of one rank."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._native.algorithms import Problem
from jaxccomp.schedules._make import Slot

# In the engine's order (csrc/collective/schedule.h).
_KINDS = ("send", "recv", "copy", "merge", "encode", "decode", "residual")
_SPACES = ("input", "output", "scratch", "code", "residual")
_NOWHERE = (0, 0, 0, 0)
_ALIGN = 64
_MAX_CHUNKS = 1 << 16
# Fields of tasks are 32 bits wide.
_MOST = (1 << 31) - 1

After = int | None | Iterable[int | None]


class Builder:
    """The tasks of one rank, added one by one. Each method returns the task's number, for `after`.

    A collective's operands lie in ``input`` blocks and its results in ``output`` blocks: one block,
    or one per rank if the operand or the result has a row per rank. A block has `block_bytes`
    bytes: the tensors of a call one after the other, each at a multiple of 64 bytes. Ranges begin
    and end at multiples of 64, or at the block's end. Values keep their offset: values at [64, 128)
    of an operand are sent, merged and received at [64, 128) of other blocks.

    Attributes:
      rank: the rank whose tasks these are.
      ranks: the number of ranks.
      root: of rooted collectives, else 0.
      block_bytes: size of each block.
      chunk_bytes: the size of a chunk, a multiple of 64.
      encoded: whether there is a codec: the schedule must then encode values before it sends them.
      feedback: whether the schedule must write each encoding's compression error to `residuals`.
      reverse: of a scan, whether it begins at the last rank.
      lane: the lane (pipeline stage) of the tasks that are added next, from 0 on: one per chunk,
        the same on all ranks. A task may wait only for tasks of the same or a lower lane, and both
        ends of a message must be in one lane. The engine can then run as many lanes at once as
        memory allows, without deadlock.
    """

    def __init__(self, rank: int, problem: Problem):
        assert problem.chunk_bytes is not None
        self.rank = rank
        self.ranks: int = problem.ranks
        self.root: int = problem.root
        self.block_bytes: int = problem.block_bytes
        self.chunk_bytes: int = problem.chunk_bytes
        self.encoded: bool = problem.encoded
        self.feedback: bool = problem.feedback
        self.reverse: bool = problem.reverse
        self.lane: int = 0
        self._tasks: list[tuple[Any, ...]] = []
        self._scratch: list[tuple[int, int]] = []
        self._code: list[tuple[int, int]] = []
        self._encoded = 0

    # Ranges.

    def input(self, like: Slot | None = None, block: int = 0) -> Slot:
        """Returns a range of an operand's block: the offsets of ``like``, or all. Read-only."""
        return self._of("input", like, block)

    def output(self, like: Slot | None = None, block: int = 0) -> Slot:
        """Returns a range of a result's block: the offsets of ``like``, or all."""
        return self._of("output", like, block)

    def residuals(self, like: Slot | None = None, block: int = 0) -> Slot:
        """Returns a range of the compression errors (with feedback), shaped like the operand."""
        return self._of("residual", like, block)

    def scratch(self, like: Slot) -> Slot:
        """Allocates temporary memory for the values of a range."""
        self._scratch.append((like.begin, like.end))
        return Slot("scratch", len(self._scratch) - 1, like.begin, like.end)

    def code(self, like: Slot) -> Slot:
        """Allocates a buffer for the encoded values of a range. Tasks use it as a whole."""
        self._code.append((like.begin, like.end))
        return Slot("code", len(self._code) - 1, like.begin, like.end)

    def cut(self, slot: Slot) -> list[Slot]:
        """Returns the chunks of a range, in order; none if it is empty."""
        size = slot.end - slot.begin
        step = _up(max(self.chunk_bytes, -(-size // _MAX_CHUNKS), _ALIGN))
        return [
            Slot(slot.space, slot.block, begin, min(begin + step, slot.end))
            for begin in range(slot.begin, slot.end, step)
        ]

    def lanes(self, slot: Slot) -> Iterator[Slot]:
        """Yields the chunks of a range, in order, with `lane` set to the chunk's number."""
        for lane, chunk in enumerate(self.cut(slot)):
            self.lane = lane
            yield chunk

    def part(self, slot: Slot, index: int, parts: int) -> Slot:
        """Returns part ``index`` of ``parts`` of a range; sizes differ by at most 64 bytes."""
        size = slot.end - slot.begin
        units = -(-size // _ALIGN)
        ends = [min(size, (units * i // parts) * _ALIGN) for i in (index, index + 1)]
        return Slot(slot.space, slot.block, slot.begin + ends[0], slot.begin + ends[1])

    # Tasks.

    def send(self, peer: int, tag: int, slot: Slot | Sequence[Slot], after: After = ()) -> int:
        """Sends a range of raw values, or a code. Several ranges of raw values are one message.

        Args:
          peer: the rank that receives it.
          tag: unique among the messages from this rank to ``peer``.
          slot: the range, or ranges.
          after: numbers of the tasks to wait for; None is ignored.

        Returns:
          The task's number; tasks after it may overwrite the range.
        """
        sources = [slot] if isinstance(slot, Slot) else list(slot)
        return self._add("send", _NOWHERE, sources, after, peer=self._peer(peer), tag=tag)

    def recv(self, peer: int, tag: int, slot: Slot | Sequence[Slot], after: After = ()) -> int:
        """Receives the message of ``peer`` with this tag into a range, or several."""
        peer = self._peer(peer)
        if isinstance(slot, Slot):
            return self._add("recv", self._row(slot), [], after, peer=peer, tag=tag)
        return self._add("recv", _NOWHERE, list(slot), after, peer=peer, tag=tag)

    def copy(self, dst: Slot, src: Slot, after: After = ()) -> int:
        """Copies: ``dst = src``."""
        return self._add("copy", self._row(dst), [src], after)

    def merge(
        self, dst: Slot, sources: Sequence[Slot], final: bool = False, after: After = ()
    ) -> int:
        """Computes ``dst = sources[0] op sources[1] op ...``, with the call's reduction.

        Args:
          dst: the result; it may be one of the sources.
          sources: raw values, or codes, which are decoded and merged in one pass. All ranks that
            compute the same result must merge in the same order, or rounding differs.
          final: whether this is the last merge of these values; for a mean it also divides.
          after: numbers of the tasks to wait for.
        """
        return self._add("merge", self._row(dst), list(sources), after, final=bool(final))

    def encode(
        self,
        code: Slot,
        src: Slot,
        after: After = (),
        *,
        whose: int | None = None,
        which: int | None = None,
    ) -> int:
        """Encodes a range; only with a codec.

        Args:
          code: from `code`, of the same range.
          src: raw values.
          after: numbers of the tasks to wait for.
          whose: the rank part of a stochastic codec's seed; default: this rank.
          which: the number part of the seed; default: a new number for each encoding of this rank.
            Ranks that must produce the same code from the same values pass the same seed.
        """
        number = self._encoded if which is None else which
        self._encoded += 1
        peer = self.rank if whose is None else whose
        if not 0 <= operator.index(peer) < self.ranks:
            raise errors.ScheduleError(
                f"encode: there is no rank {peer}, only 0 to {self.ranks - 1}."
            )
        return self._add("encode", self._row(code), [src], after, peer=peer, tag=number)

    def decode(self, dst: Slot, code: Slot, after: After = ()) -> int:
        """Decodes a code into a range."""
        return self._add("decode", self._row(dst), [code], after)

    def residual(
        self,
        dst: Slot,
        values: Slot,
        code: Slot,
        after: After = (),
        *,
        final: bool = False,
        add: bool = False,
    ) -> int:
        """Computes an encoding's error, ``dst = values - decode(code)``; only with feedback.

        Each encoding that contributes to a result has exactly one residual, on one rank, at the
        offsets of its values.

        Args:
          dst: from `residuals`.
          values: the values that were encoded.
          code: their code.
          after: numbers of the tasks to wait for.
          final: whether the values are the result of a final merge, which divides a mean.
          add: whether to add to ``dst``.
        """
        sources = [values, code, dst] if add else [values, code]
        return self._add("residual", self._row(dst), sources, after, final=bool(final))

    # Values that are sent raw or encoded, depending on `encoded`.

    def pack(self, src: Slot, after: After = ()) -> tuple[Slot, list[int]]:
        """Encodes values before a send; without a codec returns the range unchanged.

        Returns:
          The range to send, and the tasks to wait for.
        """
        if not self.encoded:
            return src, _numbers(after)
        code = self.code(src)
        return code, [self.encode(code, src, after)]

    def receive_buffer(self, dst: Slot) -> Slot:
        """Returns the receive buffer for ``dst``: ``dst`` itself, or with a codec a new code."""
        return self.code(dst) if self.encoded else dst

    @property
    def coded(self) -> bool:
        """The name of `encoded` in version 0.1."""
        errors.warn_renamed("coded", "encoded")
        return self.encoded

    def room(self, dst: Slot) -> Slot:
        """The name of `receive_buffer` in version 0.1."""
        errors.warn_renamed("room", "receive_buffer")
        return self.receive_buffer(dst)

    def unpack(self, dst: Slot, came: Slot, after: After = ()) -> list[int]:
        """Moves received or packed values to ``dst``: decodes, copies, or does nothing.

        Returns:
          The tasks to wait for before ``dst`` is read.
        """
        if came.space == "code":
            return [self.decode(dst, came, after)]
        return _numbers(after) if came == dst else [self.copy(dst, came, after)]

    def rows(self) -> tuple[list[tuple[Any, ...]], list[tuple[int, int]], list[tuple[int, int]]]:
        """Returns tasks, scratch and code in the engine's format."""
        return self._tasks, self._scratch, self._code

    def _of(self, space: str, like: Slot | None, block: int) -> Slot:
        if like is None:
            return Slot(space, block, 0, self.block_bytes)
        return Slot(space, block, like.begin, like.end)

    def _peer(self, peer: int) -> int:
        if not 0 <= operator.index(peer) < self.ranks or peer == self.rank:
            raise errors.ScheduleError(
                f"rank {self.rank} cannot exchange messages with rank {peer}: the others are "
                f"among 0 to {self.ranks - 1}."
            )
        return peer

    def _row(self, slot: Slot) -> tuple[int, int, int, int]:
        if not isinstance(slot, Slot) or slot.space not in _SPACES:
            raise errors.ScheduleError(
                f"a range is a jaxccomp.schedules.Slot in one of {errors.listed(_SPACES)}, not "
                f"{slot!r:.80}."
            )
        block, begin, end = map(operator.index, (slot.block, slot.begin, slot.end))
        if not 0 <= block <= _MOST or not 0 <= begin <= end < 1 << 62:
            raise errors.ScheduleError(f"there can be no range {slot}.")
        return _SPACES.index(slot.space), block, begin, end

    def _add(
        self,
        kind: str,
        dst: tuple[int, int, int, int],
        sources: Sequence[Slot],
        after: After,
        *,
        peer: int = -1,
        tag: int = 0,
        final: bool = False,
    ) -> int:
        number = len(self._tasks)
        deps = _numbers(after)
        for dep in deps:
            if not 0 <= dep < number:
                raise errors.ScheduleError(
                    f"{kind}: a task waits for those before it, which are numbered 0 to "
                    f"{number - 1}, not for {dep}."
                )
        for name, value, maximum in (("lane", self.lane, _MOST), ("tag", tag, (1 << 32) - 1)):
            if not 0 <= operator.index(value) <= maximum:
                raise errors.ScheduleError(f"{kind}: {name} must be in 0..{maximum}, not {value}.")
        rows = [self._row(slot) for slot in sources]
        place = (_KINDS.index(kind), final, operator.index(self.lane), operator.index(peer))
        self._tasks.append((*place, operator.index(tag), dst, rows, deps))
        return number


def _numbers(after: After) -> list[int]:
    if after is None:
        return []
    given = after if isinstance(after, Iterable) else (after,)
    return [operator.index(each) for each in given if each is not None]


def _up(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN

"""The control messages of a sync: headers, states, errors and descriptions."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any

import jax
import numpy as np

from jaxccomp import ops
from jaxccomp._native import launches
from jaxccomp.comm import Communicator

NO_PART = -1

_TEXT_BYTES = 400  # of an error text; longer ones are cut


# The program's settings do not apply to the sync's operations.
own_settings = launches.own_settings


class Kind(enum.IntEnum):
    """The kind of a round."""

    IDLE = 0  # keep-alive
    VERSION = 1
    CLOSE = 2


@dataclasses.dataclass(frozen=True)
class Header:
    """The first message of a round, from the first publisher to all."""

    kind: Kind
    version: int = 0
    base: int = 0  # the version that is the delta base; 0: none
    published_at: float = 0.0  # Unix time

    def pack(self) -> np.ndarray:
        """Packs it as int32, which JAX supports with and without x64."""
        at = np.array([self.published_at]).view(np.int32)
        return np.array([self.kind, self.version, self.base, *at], np.int32)

    @classmethod
    def unpack(cls, words: np.ndarray) -> Header:
        """The inverse of `pack`."""
        kind, version, base = map(int, words[:3])
        return cls(Kind(kind), version, base, float(words[3:5].view(np.float64)[0]))


@dataclasses.dataclass(frozen=True)
class State:
    """A member's answer to a header."""

    held: int  # the complete version that it holds; 0: none
    leaves: bool = False  # it leaves the sync
    waiting: int = 0  # how many processes wait at it to join
    part: int = NO_PART  # its index on its side


class Control:
    """The control messages of one set of members; all members call the same methods in order."""

    def __init__(self, comm: Communicator):
        """`comm` is in program order; its rank 0 is the first publisher."""
        self.comm = comm

    def header(self, header: Header | None) -> Header:
        """Broadcasts the first publisher's header; the others pass None."""
        words = (header or Header(Kind.IDLE)).pack()
        return Header.unpack(_values(ops.bcast(words, root=0, comm=self.comm)))

    def states(self, own: State) -> list[State]:
        """The states of all members, by rank."""
        row = [own.held, own.leaves, own.waiting, own.part]
        rows = self._gather(np.array(row, np.int32)).tolist()
        return [State(held, bool(leaves), waiting, part) for held, leaves, waiting, part in rows]

    def failures(self, own: str) -> list[str]:
        """The error texts of all members, by rank; empty without an error."""
        text = own.encode()[:_TEXT_BYTES]
        padded = np.frombuffer(text.ljust(_TEXT_BYTES, b"\0"), np.uint8)
        rows = self._gather(padded)
        return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]

    def descriptions(self, own: Any) -> list[Any]:
        """The JSON values of all members, by rank."""
        text = json.dumps(own).encode()
        maximum = int(self._gather(np.array([len(text)], np.int32)).max())
        padded = np.frombuffer(text.ljust(maximum), np.uint8)
        return [json.loads(row.tobytes()) for row in self._gather(padded)]

    def _gather(self, row: np.ndarray) -> np.ndarray:
        return _values(ops.allgather(row, comm=self.comm))


def _values(array: jax.Array | np.ndarray) -> np.ndarray:
    return np.asarray(array)

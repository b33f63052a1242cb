"""What members of a sync tell each other of a version, in small messages."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any

import jax
import numpy as np

from jaxccomp import ops
from jaxccomp._native import launch_places
from jaxccomp.comm import Communicator

NO_PART = -1

_TEXT_BYTES = 400  # of what has failed on a rank


# What a program asks for itself is not for the weights.
own_settings = launch_places.own_settings


class Kind(enum.IntEnum):
    """What a round is for."""

    IDLE = 0  # says that the publishers live
    VERSION = 1
    CLOSE = 2


@dataclasses.dataclass(frozen=True)
class Header:
    """How a round begins: the first publisher's word to all."""

    kind: Kind
    version: int = 0
    base: int = 0  # the version before, to which differences are sent; 0: there is none
    published_at: float = 0.0  # Unix time

    def pack(self) -> np.ndarray:
        """As int32, which JAX has in any case."""
        at = np.array([self.published_at]).view(np.int32)
        return np.array([self.kind, self.version, self.base, *at], np.int32)

    @classmethod
    def unpack(cls, words: np.ndarray) -> Header:
        """The inverse."""
        kind, version, base = map(int, words[:3])
        return cls(Kind(kind), version, base, float(words[3:5].view(np.float64)[0]))


@dataclasses.dataclass(frozen=True)
class State:
    """What a member answers: the version that it holds whole, 0 for none."""

    held: int
    leaves: bool = False  # it takes no further part
    waiting: int = 0  # how many wait at it to be taken in
    part: int = NO_PART  # which one of its side's parts of the weights it has


class Control:
    """The messages of one set of members, in the same order on all of them."""

    def __init__(self, comm: Communicator):
        """`comm` is in program order, and has the first publisher as rank 0."""
        self.comm = comm

    def header(self, header: Header | None) -> Header:
        """The first publisher gives it, and all others get it."""
        words = (header or Header(Kind.IDLE)).pack()
        return Header.unpack(_values(ops.bcast(words, root=0, comm=self.comm)))

    def states(self, own: State) -> list[State]:
        """Those of all members, in the order of their ranks."""
        row = [own.held, own.leaves, own.waiting, own.part]
        rows = self._gather(np.array(row, np.int32)).tolist()
        return [State(held, bool(leaves), waiting, part) for held, leaves, waiting, part in rows]

    def failures(self, own: str) -> list[str]:
        """What has failed on each member; empty texts where nothing has."""
        text = own.encode()[:_TEXT_BYTES]
        padded = np.frombuffer(text.ljust(_TEXT_BYTES, b"\0"), np.uint8)
        rows = self._gather(padded)
        return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]

    def descriptions(self, own: Any) -> list[Any]:
        """What each member says of itself, as JSON can hold it."""
        text = json.dumps(own).encode()
        most = int(self._gather(np.array([len(text)], np.int32)).max())
        padded = np.frombuffer(text.ljust(most), np.uint8)
        return [json.loads(row.tobytes()) for row in self._gather(padded)]

    def _gather(self, row: np.ndarray) -> np.ndarray:
        return _values(ops.allgather(row, comm=self.comm))


def _values(array: jax.Array) -> np.ndarray:
    return np.asarray(array)

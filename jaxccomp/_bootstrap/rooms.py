"""Where the rows of a group are gathered: each member brings its own, and all get all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_LOOK_SECONDS = 0.05
_MOST_ROOMS = 4096
_MOST_MEMBERS = 1 << 16


class Missing(Exception):
    """Others have not come in time, or never will."""


class Disagreement(Exception):
    """Who brings a row says something else than others."""


class _Room:
    def __init__(self, size: int):
        self.size = size
        self.rows: dict[int, list[Any]] = {}
        self.whole: list[list[Any]] | None = None


class Rooms:
    """Rooms by name. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rooms: dict[str, _Room] = {}

    def gather(
        self,
        name: str,
        size: int,
        rank: int,
        row: list[Any],
        deadline: float,
        why_not: Callable[[], str],
    ) -> list[list[Any]]:
        """Brings this process's own row, and waits for all.

        Args:
          name: of the room.
          size: how many members there are.
          rank: of this one.
          row: its own.
          deadline: by ``time.monotonic``.
          why_not: why others will never come; empty as long as they may.

        Raises:
          Missing: with who has not come, or why they will not.
        """
        reason = ""

        def ends() -> bool:
            nonlocal reason
            reason = why_not()
            return bool(reason) or time.monotonic() > deadline

        try:
            return self.wait(name, size, rank, row, ends)
        except Missing as error:
            raise Missing(reason or str(error)) from None

    def wait(
        self, name: str, size: int, rank: int, row: list[Any], ends: Callable[[], bool]
    ) -> list[list[Any]]:
        """Brings the row of a member, and waits for those of all others.

        Raises:
          Missing: with who has not come, once ``ends`` says so; the row is taken back.
          Disagreement: where it does not fit to what others say.
        """
        with self._changed:
            room = self._enter(name, size, rank, row)
            try:
                while room.whole is None:
                    self._changed.wait(_LOOK_SECONDS)
                    if room.whole is None and ends():
                        missing = [each for each in range(size) if each not in room.rows]
                        raise Missing(f"ranks {missing} have not come")
                return room.whole
            finally:
                if room.whole is None:
                    del room.rows[rank]
                    if not room.rows:
                        self._rooms.pop(name, None)

    def _enter(self, name: str, size: int, rank: int, row: list[Any]) -> _Room:
        if not 0 <= rank < size <= _MOST_MEMBERS:
            raise Disagreement(f"rank {rank} of {size} does not exist")
        if name not in self._rooms and len(self._rooms) >= _MOST_ROOMS:
            raise Disagreement("too many groups meet here")
        room = self._rooms.setdefault(name, _Room(size))
        if room.size != size:
            raise Disagreement(f"here {room.size} processes meet, not {size}")
        if rank in room.rows:
            raise Disagreement(
                f"two processes say that they are rank {rank} of {size}: each needs a rank of its "
                "own, and each job a port of its own"
            )
        room.rows[rank] = row
        if len(room.rows) == size:
            room.whole = [room.rows[each] for each in range(size)]
            del self._rooms[name]  # what comes by this name now is new
            self._changed.notify_all()
        return room

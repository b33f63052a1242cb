"""Where the words of a group's members are gathered, and what one of them makes of these.

A room is at one member's, who leads: it decides, as soon as the words that have come allow it, and
all whose words have come hear the decision.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

_LOOK_SECONDS = 0.05
_MOST_ROOMS = 4096

# What a leader makes of the words that have come, by member; None as long as others are awaited.
Decides = Callable[[Mapping[int, Any]], Any]


class Missing(Exception):
    """Others have not come in time, or never will."""


class Disagreement(Exception):
    """Who comes says something else than others."""


class _Word:
    def __init__(self, text: Any):
        self.text = text


class _Room:
    def __init__(self) -> None:
        self.words: dict[int, _Word] = {}
        self.decision: Any = None


class Rooms:
    """Rooms by name. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rooms: dict[str, _Room] = {}

    def lead(
        self,
        name: str,
        member: int,
        text: Any,
        decides: Decides,
        deadline: float,
        why_not: Callable[[], str] = lambda: "",
    ) -> Any:
        """Brings this process's own word, and decides.

        Args:
          name: of the room.
          member: this one.
          text: its word.
          decides: what to make of all words; called again and again.
          deadline: by ``time.monotonic``.
          why_not: why there will be no decision; empty as long as there may.

        Raises:
          Missing: where there is none in time, or why there will be none.
        """
        with self._changed:
            room, word = self._enter(name, member, text, unique=False)
            try:
                while True:
                    decision = decides({who: each.text for who, each in room.words.items()})
                    if decision is not None:
                        room.decision = decision
                        del self._rooms[name]  # what comes by this name now is new
                        self._changed.notify_all()
                        return decision
                    if (why := why_not()) or time.monotonic() > deadline:
                        came = sorted(room.words)
                        raise Missing(why or f"only {came} have come")
                    self._changed.wait(_LOOK_SECONDS)
            finally:
                self._leave(name, room, member, word)

    def wait(
        self, name: str, member: int, text: Any, ends: Callable[[], bool], *, unique: bool = False
    ) -> Any:
        """Brings another member's word, and waits for the decision.

        Args:
          name: of the room.
          member: whose word it is.
          text: the word.
          ends: whether the member has gone.
          unique: two words of one member are an error; otherwise the later one counts.

        Raises:
          Missing: once ``ends`` says so; the word is taken back.
          Disagreement: for the second of two.
        """
        with self._changed:
            room, word = self._enter(name, member, text, unique)
            try:
                while room.decision is None:
                    self._changed.wait(_LOOK_SECONDS)
                    if room.decision is None and ends():
                        raise Missing("it has gone")
                return room.decision
            finally:
                self._leave(name, room, member, word)

    def _enter(self, name: str, member: int, text: Any, unique: bool) -> tuple[_Room, _Word]:
        if name not in self._rooms and len(self._rooms) >= _MOST_ROOMS:
            raise Disagreement("too many groups meet here")
        room = self._rooms.setdefault(name, _Room())
        if unique and member in room.words:
            raise Disagreement(
                f"two processes say that they are rank {member}: each needs a rank of its own, and "
                "each job a port of its own"
            )
        word = room.words[member] = _Word(text)
        self._changed.notify_all()
        return room, word

    def _leave(self, name: str, room: _Room, member: int, word: _Word) -> None:
        if room.words.get(member) is word:
            del room.words[member]
        if not room.words and self._rooms.get(name) is room:
            del self._rooms[name]

"""Join requests that wait at this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class JoinRequest:
    """The request of one process that waits to join."""

    def __init__(self, message: dict[str, Any]):
        self.message = message
        self.reply: dict[str, Any] = {}
        self.answered = threading.Event()

    def answer(self, reply: dict[str, Any]) -> None:
        """Sets the reply, which ends the wait."""
        self.reply = reply
        self.answered.set()


class WaitList:
    """The join requests at this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[JoinRequest] = []

    @contextlib.contextmanager
    def added(self, message: dict[str, Any]) -> Iterator[JoinRequest]:
        """Add a request for the length of a ``with`` block."""
        request = JoinRequest(message)
        with self._lock:
            self._requests.append(request)
        try:
            yield request
        finally:
            with self._lock:
                self._requests.remove(request)

    def of(self, group: str) -> list[JoinRequest]:
        """The requests for that group."""
        with self._lock:
            return [each for each in self._requests if each.message.get("group") == group]

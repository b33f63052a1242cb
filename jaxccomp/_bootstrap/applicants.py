"""Processes that wait at this one to be taken into a group."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class Applicants:
    """Processes that wait here to be taken in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Applicant] = []

    @contextlib.contextmanager
    def waiting(self, request: dict[str, Any]) -> Iterator[Applicant]:
        """One more, for the length of a ``with`` block."""
        applicant = Applicant(request)
        with self._lock:
            self._all.append(applicant)
        try:
            yield applicant
        finally:
            with self._lock:
                self._all.remove(applicant)

    def of(self, group: str) -> list[Applicant]:
        """Those that wait for that group."""
        with self._lock:
            return [each for each in self._all if each.request.get("group") == group]


class Applicant:
    """One of them, until it is answered."""

    def __init__(self, request: dict[str, Any]):
        self.request = request
        self.answer: dict[str, Any] = {}
        self.answered = threading.Event()

    def tell(self, answer: dict[str, Any]) -> None:
        """Answers it."""
        self.answer = answer
        self.answered.set()

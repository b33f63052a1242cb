"""The versions of weights that a rank holds: one whole, and one that is under way."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import jax

from jaxccomp import errors
from jaxccomp.sync._control import Header
from jaxccomp.sync._transfer import Arrays


@dataclasses.dataclass(frozen=True)
class Version:
    """Arrays of one version."""

    number: int
    arrays: Arrays
    published_at: float
    params: Any = None  # as a receiver's program gets them


class Versions:
    """What both sides have in common: a version that is whole, and why there is no further one."""

    def __init__(self) -> None:
        """Nothing is there yet."""
        self.changed = threading.Condition()
        self.whole: Version | None = None
        self.failure = ""  # set when no further version comes
        self.closed = False

    @property
    def number(self) -> int:
        """The version that is whole; 0: none."""
        return self.whole.number if self.whole else 0

    @property
    def held(self) -> int:
        """The version that differences may be sent to; 0: none."""
        return self.number

    def distrust(self) -> None:
        """What has come or gone since has failed."""

    def end(self, failure: str = "") -> None:
        """No further version comes."""
        with self.changed:
            self.failure, self.closed = failure, True
            self.changed.notify_all()

    def check(self) -> None:
        """Raises where it has failed."""
        if self.failure:
            raise errors.SyncError(self.failure)


class Outgoing(Versions):
    """Of a publisher: the version that all receivers have, and the next one."""

    def __init__(self) -> None:
        """Nothing is published yet."""
        super().__init__()
        self.pending: Version | None = None

    def put(self, make: Callable[[], Version]) -> None:
        """Takes the next version, when the one before is with all receivers."""
        with self.changed:
            self.changed.wait_for(lambda: self.pending is None or self.closed)
            self.check()
            if not self.closed:
                self.pending = make()
                self.changed.notify_all()

    def wait_for_pending(self, seconds: float, until: Callable[[], bool]) -> Version | None:
        """The next version, if it comes in time."""
        with self.changed:
            self.changed.wait_for(lambda: self.pending is not None or until(), seconds)
            return self.pending

    def begin(self, header: Header, seconds: float) -> Arrays:
        """The arrays of that version.

        Raises:
          SyncError: where the program publishes another one, or none in time.
        """
        with self.changed:
            if self.pending is not None and self.pending.number < header.version:
                # All have it, as the first publisher has gone on: it is only not known here, as
                # somebody died at that moment.
                self._take_pending()
            if self.whole is not None and self.number == header.version:
                return self.whole.arrays
            if not self.changed.wait_for(lambda: self.pending is not None, seconds):
                raise errors.SyncError(
                    f"version {header.version} has not been published here after {seconds:.3g} s; "
                    "every Publisher must publish every version"
                )
            if self.pending.number != header.version:
                raise errors.SyncError(
                    f"version {self.pending.number} is published here, and {header.version} by the "
                    "first Publisher; every Publisher must publish every version"
                )
            return self.pending.arrays

    def commit(self, header: Header, received: Arrays) -> None:  # noqa: ARG002 - as Incoming
        """All receivers have the version."""
        with self.changed:
            if self.pending is not None and self.pending.number == header.version:
                self._take_pending()

    def _take_pending(self) -> None:
        self.whole, self.pending = self.pending, None
        self.changed.notify_all()


class Incoming(Versions):
    """Of a receiver: the last version that has come whole."""

    def __init__(self, zeros: Callable[[], Arrays], present: Callable[[Arrays], Any]):
        """Nothing has come yet.

        Args:
          zeros: makes arrays of the shapes that come.
          present: what the program gets of arrays.
        """
        super().__init__()
        self._zeros = zeros
        self._present = present
        self._distrusted = False

    @property
    def held(self) -> int:
        """The whole version, unless the last exchange has failed here."""
        return 0 if self._distrusted else self.number

    def begin(self, header: Header, seconds: float) -> Arrays:  # noqa: ARG002 - as Outgoing
        """Arrays of the right shapes."""
        return self.whole.arrays if self.whole else self._zeros()

    def distrust(self) -> None:
        """The next version must come in full."""
        self._distrusted = True

    def commit(self, header: Header, received: Arrays) -> None:
        """A version has come whole, to all receivers."""
        version = Version(header.version, received, header.published_at, self._present(received))
        jax.block_until_ready(version.params)
        with self.changed:
            self._distrusted = False
            if header.version >= self.number:
                self.whole = version
                self.changed.notify_all()

"""The versions of weights that a rank holds: a complete one, and one in flight."""

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
    params: Any = None  # the tree that a receiver's program gets


class Versions:
    """State of both sides: the last complete version, and the reason why the sync has ended."""

    def __init__(self) -> None:
        """Starts without a version."""
        self.changed: threading.Condition = threading.Condition()
        self.whole: Version | None = None
        self.failure: str = ""  # the error that ended the sync
        self.closed: bool = False

    @property
    def number(self) -> int:
        """The last complete version; 0: none."""
        return self.whole.number if self.whole else 0

    @property
    def held(self) -> int:
        """The version that may be the delta base; 0: none."""
        return self.number

    def distrust(self) -> None:
        """Invalidates the delta base after a failed exchange."""

    def _complete(self, version: Version | None) -> None:
        """Makes this the last complete version, and wakes waiters. Call it with `changed` held."""
        self.whole = version
        self.changed.notify_all()

    def end(self, failure: str = "") -> None:
        """Ends the sync and wakes its waiters."""
        with self.changed:
            self.failure, self.closed = failure, True
            self.changed.notify_all()

    def check(self) -> None:
        """Raises `SyncError` if the sync has failed."""
        if self.failure:
            raise errors.SyncError(self.failure)


class Outgoing(Versions):
    """A publisher's versions: the one that all receivers have, and the next one."""

    def __init__(self) -> None:
        """Starts without a version."""
        super().__init__()
        self.pending: Version | None = None

    def put(self, make: Callable[[], Version]) -> None:
        """Stores the next version once all receivers have the previous one."""
        with self.changed:
            self.changed.wait_for(lambda: self.pending is None or self.closed)
            self.check()
            if not self.closed:
                self.pending = make()
                self.changed.notify_all()

    def wait_for_pending(self, seconds: float, until: Callable[[], bool]) -> Version | None:
        """Returns the next version; None after `seconds` or once `until()` holds."""
        with self.changed:
            self.changed.wait_for(lambda: self.pending is not None or until(), seconds)
            return self.pending

    def begin(self, header: Header, seconds: float) -> Arrays:
        """The arrays of the header's version.

        Raises:
          SyncError: if the program publishes another version, or none in time.
        """
        with self.changed:
            if self.pending is not None and self.pending.number < header.version:
                # A member died before this rank could commit. All receivers have the version,
                # since the first publisher has gone on to a later one.
                self._take_pending()
            if self.whole is not None and self.number == header.version:
                return self.whole.arrays
            self.changed.wait_for(lambda: self.pending is not None, seconds)
            pending = self.pending
            if pending is None:
                raise errors.SyncError(
                    f"version {header.version} has not been published here after {seconds:.3g} s; "
                    "every Publisher must publish every version"
                )
            if pending.number != header.version:
                raise errors.SyncError(
                    f"version {pending.number} is published here, and {header.version} by the "
                    "first Publisher; every Publisher must publish every version"
                )
            return pending.arrays

    def commit(self, header: Header, received: Arrays) -> None:  # noqa: ARG002 - as Incoming
        """Marks the version as complete: all receivers have it."""
        with self.changed:
            if self.pending is not None and self.pending.number == header.version:
                self._take_pending()

    def _take_pending(self) -> None:
        version, self.pending = self.pending, None
        self._complete(version)


class Incoming(Versions):
    """A receiver's versions: the last complete one."""

    def __init__(self, zeros: Callable[[], Arrays], present: Callable[[Arrays], Any]):
        """Starts without a version.

        Args:
          zeros: makes zeros of the shapes that are received.
          present: makes the program's tree from the received arrays.
        """
        super().__init__()
        self._zeros = zeros
        self._present = present
        self._distrusted = False

    @property
    def held(self) -> int:
        """The last complete version; 0 if the last exchange has failed on this rank."""
        return 0 if self._distrusted else self.number

    def begin(self, header: Header, seconds: float) -> Arrays:  # noqa: ARG002 - as Outgoing
        """Arrays of the shapes to receive."""
        return self.whole.arrays if self.whole else self._zeros()

    def distrust(self) -> None:
        """Requires the next version in full."""
        self._distrusted = True

    def commit(self, header: Header, received: Arrays) -> None:
        """Stores a version that all receivers have."""
        version = Version(header.version, received, header.published_at, self._present(received))
        jax.block_until_ready(version.params)
        with self.changed:
            self._distrusted = False
            if header.version >= self.number:
                self._complete(version)

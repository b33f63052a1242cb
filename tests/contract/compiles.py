"""Counts compilations of JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_events: list[str] = []


def _listen(event: str, *_: object, **__: object) -> None:
    if event == _COMPILED:
        _events.append(event)


# Permanent: JAX can only remove all listeners together.
jax.monitoring.register_event_duration_secs_listener(_listen)


class Count:
    """The number of programs that XLA compiled within a `counted` block."""

    programs = 0


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Counts the programs compiled in the block; the count is valid after it."""
    count, before = Count(), len(_events)
    yield count
    count.programs = len(_events) - before

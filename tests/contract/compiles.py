"""Counts what JAX compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_events: list[str] = []


def _listen(event: str, *_: object, **__: object) -> None:
    if event == _COMPILED:
        _events.append(event)


# For good: a listener cannot be taken out again without all others.
jax.monitoring.register_event_duration_secs_listener(_listen)


class Count:
    """How many programs XLA compiled within a `counted` block."""

    programs = 0


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Counts the programs compiled in the block; the count stands after it."""
    count, before = Count(), len(_events)
    yield count
    count.programs = len(_events) - before

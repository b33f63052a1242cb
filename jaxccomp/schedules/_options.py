"""The ways to run a call, of which one is chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from jaxccomp.schedules._layout import Groups

# What is chosen instead of the static rule, of a smaller chunk, or of raw values has to be so much
# faster: less is within the errors of prices.
GAIN = 0.05
RAW = "raw"  # the codec of values that travel as they are

Sizes = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Option:
    """One way to run a call.

    Attributes:
      algorithm: as operations take it; "auto" is the engine's static rule.
      runs: the name of the algorithm that runs.
      codec: a spec; "raw" for none.
      seconds: what it takes, by the profile.
    """

    algorithm: str
    runs: str
    codec: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Choice:
    """What was chosen for a call.

    Attributes:
      chosen: how it runs.
      others: what was priced beside it, the fastest first.
    """

    chosen: Option
    others: tuple[Option, ...]


@dataclasses.dataclass(frozen=True)
class Question:
    """What is to be chosen: the arguments of `Planner.choose`."""

    collective: str
    algorithm: str
    codecs: tuple[str, ...]
    sizes: Sizes
    groups: Groups
    root: int


def first_of_gain(options: Sequence[Option]) -> Option | None:
    """The first one, or a later one that is faster by what a choice has to gain."""
    best: Option | None = None
    for each in options:
        if best is None or each.seconds < (1 - GAIN) * best.seconds:
            best = each
    return best


def choice_of(chosen: Option | None, options: Iterable[Option]) -> Choice | None:
    """What was chosen, beside what else was priced."""
    if chosen is None:
        return None
    # No set: of equal ones the order has to be the same on all ranks.
    others = [each for each in dict.fromkeys(options) if each != chosen]
    others.sort(key=lambda each: each.seconds)
    return Choice(chosen, tuple(others))

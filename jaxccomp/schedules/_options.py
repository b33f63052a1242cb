"""The candidates for running a call, and the choice among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from jaxccomp.schedules._layout import Groups

# A candidate replaces the static rule, a smaller chunk or raw values only if its predicted time is
# lower by this fraction: less is within the errors of predictions.
GAIN = 0.05
RAW = "raw"  # no codec

Sizes = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Option:
    """A candidate for running a call.

    Attributes:
      algorithm: the operation's argument; "auto" is the engine's static rule.
      runs: the name of the algorithm that runs.
      codec: a spec; "raw" for none.
      seconds: the predicted time, by the profile.
    """

    algorithm: str
    runs: str
    codec: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Choice:
    """The candidate chosen for a call.

    Attributes:
      chosen: the candidate that runs.
      others: the other candidates with a predicted time, the fastest first.
    """

    chosen: Option
    others: tuple[Option, ...]


@dataclasses.dataclass(frozen=True)
class Question:
    """The arguments of `Planner.choose`."""

    collective: str
    algorithm: str
    codecs: tuple[str, ...]
    sizes: Sizes
    groups: Groups
    root: int


def first_of_gain(options: Sequence[Option]) -> Option | None:
    """The first option, unless a later one is faster by `GAIN`."""
    best: Option | None = None
    for each in options:
        if best is None or each.seconds < (1 - GAIN) * best.seconds:
            best = each
    return best


def choice_of(chosen: Option | None, options: Iterable[Option]) -> Choice | None:
    """The choice with the other priced options; None if nothing was chosen."""
    if chosen is None:
        return None
    # A dict, not a set: ties must be in the same order on all ranks.
    others = [each for each in dict.fromkeys(options) if each != chosen]
    others.sort(key=lambda each: each.seconds)
    return Choice(chosen, tuple(others))

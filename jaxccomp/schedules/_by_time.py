"""The choice by what operations took where the profile was measured, and by prices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from jaxccomp.schedules._options import RAW, Choice, Option, Question, choice_of, first_of_gain
from jaxccomp.schedules._timings import Rows, seconds_of
from jaxccomp.schedules._ways import Ways

# What was so much slower is not chosen, whatever its price.
_NEAR = 1.5


def choose(
    question: Question, ways: Ways, timings: Mapping[str, Mapping[str, Rows]]
) -> Choice | None:
    """The choice by times and prices; None where nothing that may run was timed at such a size.

    Both are off, and by other things: times by what else the machine did, prices by what they
    know nothing of. What counts is their geometric mean. A codec has to be faster than raw
    values by its price too: short times on more ranks than cores scatter by more than that.

    Args:
      question: what is to be chosen.
      ways: to run it.
      timings: by codec and algorithm, also with another chunk than the usual one.
    """
    options: list[Option] = []
    fastest: list[Option] = []  # with each codec
    raw_price = math.inf
    for codec in ways.codecs():
        found = _estimated(question.algorithm, codec, ways, seconds_of(timings[codec], ways.bytes))
        options += found
        best = first_of_gain(list(found))
        if best is None or found[best] >= raw_price:
            continue
        fastest.append(best)
        if codec == RAW:
            raw_price = found[best]
    return choice_of(first_of_gain(fastest), options)


def _estimated(
    asked: str, codec: str, ways: Ways, timed: Mapping[str, float]
) -> dict[Option, float]:
    """What may run with a codec, and its price in seconds; the static rule comes first."""
    rule = ways.rule(codec)
    allowed = {rule, *ways.others(codec)}
    limit = _NEAR * min(timed.values(), default=0.0)
    found: dict[Option, float] = {}
    for name, seconds in timed.items():
        may_run = name == asked if asked != "auto" else name.partition(":")[0] in allowed
        if not may_run or seconds > limit:
            continue
        price = ways.price(asked if name == rule else name, codec)
        if price is not None:
            mean = math.sqrt(seconds * price.seconds)
            found[dataclasses.replace(price, seconds=mean)] = price.seconds
    ordered = sorted(found, key=lambda each: (each.algorithm != "auto", each.seconds))
    return {each: found[each] for each in ordered}

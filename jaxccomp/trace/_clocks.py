"""How far clocks of hosts are apart, by messages between them.

A message was sent at s, by the clock of one host, and began to come in at r, by that of another.
Then r - s is how long it was under way, which is not less than 0, and how far the clocks are apart.
The fastest messages both ways so bound the latter from both sides, as in NTP. The middle is taken,
and half of the distance of the bounds is what remains unsure.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxccomp import errors

# No two clocks of computers drift apart faster, for longer than this.
_MOST_DRIFT = 1e-3
_LEAST_SECONDS = 1e-3


@dataclasses.dataclass(frozen=True)
class ClockOffset:
    """How the times of some ranks were moved to those of the lowest rank's clock.

    Attributes:
      ranks: those that share this clock.
      hosts: the names of their machines.
      seconds: was added to what their ``CLOCK_MONOTONIC`` read. It counts from the start of a
        machine, so this may be days.
      uncertainty_seconds: how far that may be off, either way; 0 for the lowest rank's clock, and
        None where it is not known.
      by: "reference" for the lowest rank's clock; "messages" where messages between hosts tell;
        "wall clock" where there are none both ways: the hosts' own time of day, which may be
        milliseconds or more apart.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    seconds: float
    uncertainty_seconds: float | None
    by: str


class Shift(NamedTuple):
    """What is added to a clock's times; how far that may be off, None where it is not known."""

    seconds: float
    uncertainty: float | None


def shifts(
    clocks: Sequence[str], fastest: Mapping[tuple[str, str], float], seconds: float
) -> dict[str, Shift]:
    """What to add to times by each clock, where messages tell.

    Args:
      clocks: all, that of reference first.
      fastest: by sending and receiving clock, the least that a message took, by both clocks.
      seconds: how long the recordings are, in which clocks drift.

    Raises:
      InvalidArgumentError: where messages arrive before they were sent.
    """
    found = {clocks[0]: Shift(0.0, 0.0)}
    waiting = [(0.0, clocks[0])]
    done = set()
    # The way of the least uncertainty to each (Dijkstra).
    while waiting:
        uncertainty, here = heapq.heappop(waiting)
        if here in done:
            continue
        done.add(here)
        for there in clocks:
            out, back = fastest.get((here, there)), fastest.get((there, here))
            if there == here or out is None or back is None:
                continue
            if out + back < -(_LEAST_SECONDS + _MOST_DRIFT * seconds):
                raise errors.InvalidArgumentError(
                    f"messages arrive {-(out + back) / 2:.6f} s before they were sent: the traces "
                    "are not of one run of a program. Give those that its ranks have saved."
                )
            total = uncertainty + abs(out + back) / 2
            known = found.get(there)
            if known is None or known.uncertainty is None or total < known.uncertainty:
                found[there] = Shift(found[here].seconds + (back - out) / 2, total)
                heapq.heappush(waiting, (total, there))
    return found

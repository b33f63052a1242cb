"""Estimates clock offsets between hosts from messages, as NTP does.

A message is sent at s by the sender's clock, and arrives at r by the receiver's. Then r - s is the
latency (at least 0) plus the clock offset. The fastest messages in both directions bound the offset
from both sides. The estimate is the middle of the bounds; its uncertainty is half their distance.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxccomp import errors

# An upper bound for the drift between two clocks, in seconds per second.
_MOST_DRIFT = 1e-3
_LEAST_SECONDS = 1e-3


@dataclasses.dataclass(frozen=True)
class ClockOffset:
    """The offset of a clock to the lowest rank's clock.

    Attributes:
      ranks: the ranks that share this clock.
      hosts: the names of their machines.
      seconds: was added to their ``CLOCK_MONOTONIC``, which counts from the start of a machine, so
        this may be days.
      uncertainty_seconds: of ``seconds``, plus or minus; 0 for the lowest rank's clock, None if
        unknown.
      by: "reference" for the lowest rank's clock; "messages" if estimated from messages between
        hosts; "wall clock" without messages in both directions: by the hosts' time of day, which
        may differ by milliseconds or more.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    seconds: float
    uncertainty_seconds: float | None
    by: str


class Shift(NamedTuple):
    """The correction to add to a clock's times, and its uncertainty; None if unknown."""

    seconds: float
    uncertainty: float | None


def shifts(
    clocks: Sequence[str], fastest: Mapping[tuple[str, str], float], seconds: float
) -> dict[str, Shift]:
    """The corrections of all clocks that messages in both directions connect to the reference.

    Args:
      clocks: all clocks, the reference first.
      fastest: by sending and receiving clock, the minimum of arrival minus send time.
      seconds: the length of the recordings, during which clocks drift.

    Raises:
      InvalidArgumentError: if messages arrive before they were sent, beyond the drift.
    """
    found = {clocks[0]: Shift(0.0, 0.0)}
    waiting = [(0.0, clocks[0])]
    done = set()
    # The path of minimum uncertainty to each clock (Dijkstra).
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
                    "are not of one run of a program. Give traces that ranks of one run saved."
                )
            total = uncertainty + abs(out + back) / 2
            known = found.get(there)
            if known is None or known.uncertainty is None or total < known.uncertainty:
                found[there] = Shift(found[here].seconds + (back - out) / 2, total)
                heapq.heappush(waiting, (total, there))
    return found

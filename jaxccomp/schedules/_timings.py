"""What operations took where a profile was measured, beside their prices (docs/planner.md)."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Any

from jaxccomp import errors
from jaxccomp._native import algorithms
from jaxccomp.schedules._make import COLLECTIVES

# Bytes that a rank passes in, and the seconds that the call took on the slowest rank; small ones
# first.
Rows = tuple[tuple[int, float], ...]
# By collective, dtype, codec ("raw" for none) and algorithm.
Timings = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Rows]]]]

# What a profile may have.
_MOST_NAMES, _MOST_ROWS = 64, 32
_MOST_BYTES, _MOST_SECONDS = 1 << 50, 1e6


def parse(content: Any, place: str) -> Timings:
    """The timings of a profile, which are not trusted.

    Args:
      content: what the file has, by collective, dtype, codec and algorithm.
      place: what errors call it.

    Raises:
      InvalidArgumentError: where anything in it cannot be.
      UnknownNameError: for a collective or an algorithm that there is not.
    """
    found: dict[str, dict[str, dict[str, dict[str, Rows]]]] = {}
    for collective, by_dtype in _named(content, place):
        if collective not in COLLECTIVES:
            raise errors.unknown(f"collective of {place}:", collective, COLLECTIVES)
        for dtype, by_codec in _named(by_dtype, f"{place}: {collective}"):
            codecs = found.setdefault(collective, {}).setdefault(dtype, {})
            for codec, by_algorithm in _named(by_codec, f"{place}: {collective}, {dtype}"):
                here = f"{place}: {collective}, {dtype}, {codec}"
                codecs[codec] = {
                    _algorithm(collective, name, here): _rows(rows, f"{here}, {name}")
                    for name, rows in _named(by_algorithm, here)
                }
    return found


def seconds_of(timings: Mapping[str, Rows], size_bytes: int) -> dict[str, float]:
    """By algorithm what a call takes, between the sizes that were timed and beyond them.

    Between two sizes it grows evenly, as a latency and bytes over a bandwidth do; beyond the
    largest one it grows with the bytes. An algorithm that was not timed at the sizes next to this
    one is left out: it was slow.

    Args:
      timings: of algorithms.
      size_bytes: that a rank passes in.

    Example:
      >>> seconds_of({"chain": ((1000, 1.0), (4000, 4.0)), "ring": ((1000, 0.5),)}, 2000)
      {'chain': 2.0}
    """
    sizes = sorted({size for rows in timings.values() for size, _ in rows})
    if not sizes:
        return {}
    low = sizes[max(bisect.bisect_right(sizes, size_bytes) - 1, 0)]
    high = sizes[min(bisect.bisect_left(sizes, size_bytes), len(sizes) - 1)]
    found = {}
    for name, rows in timings.items():
        known = dict(rows)
        if low not in known or high not in known:
            continue
        if low == high:
            found[name] = known[high] * max(size_bytes / high, 1.0)
            continue
        part = (size_bytes - low) / (high - low)
        found[name] = (1 - part) * known[low] + part * known[high]
    return found


def _named(content: Any, place: str) -> list[tuple[str, Any]]:
    if not isinstance(content, Mapping) or len(content) > _MOST_NAMES:
        raise errors.InvalidArgumentError(f"{place} is an object of at most {_MOST_NAMES} names.")
    return [(str(name), each) for name, each in content.items()]


def _algorithm(collective: str, spec: str, place: str) -> str:
    if not algorithms.has(collective, spec):
        name = spec.partition(":")[0]
        raise errors.unknown(f"algorithm of {place}:", name, algorithms.own_names(collective))
    return spec


def _rows(content: Any, place: str) -> Rows:
    if not isinstance(content, list) or not 1 <= len(content) <= _MOST_ROWS:
        raise errors.InvalidArgumentError(
            f"{place} is a list of 1 to {_MOST_ROWS} pairs of bytes and seconds."
        )
    rows = []
    for each in content:
        good = isinstance(each, list) and len(each) == 2
        good = good and not any(isinstance(number, bool) for number in each)
        good = good and isinstance(each[0], int) and 1 <= each[0] <= _MOST_BYTES
        good = good and isinstance(each[1], (int, float)) and 0 < each[1] <= _MOST_SECONDS
        if not good or (rows and each[0] <= rows[-1][0]):
            raise errors.InvalidArgumentError(
                f"{place}: {each!r:.60} is not a pair of whole bytes, which grow from pair to "
                "pair, and positive seconds."
            )
        rows.append((each[0], float(each[1])))
    return tuple(rows)

"""Times operations with each algorithm, as they are and coded without loss, for a profile."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from jaxccomp.bench.files import Tensor
from jaxccomp.bench.progress import Progress
from jaxccomp.bench.team import Team

# What can be timed, and whether a rank passes in a row for each rank.
NAMES = {
    "bcast": False,
    "allreduce": False,
    "allgather": False,
    "reduce_scatter": True,
    "alltoall": True,
    "gather": False,
    "scatter": True,
    "reduce": False,
}
# Each four times the one before: between them, times are interpolated.
SIZES = tuple(2048 << 2 * i for i in range(8))
# So long links are busy before a call.
_BUSY_SECONDS = 2e-3

# Algorithms and codecs that are worth being timed, for an operation, a dtype and bytes.
Plans = Callable[[str, str, int], Sequence[tuple[str, str]]]
Timed = dict[str, dict[str, dict[str, dict[str, list[list[float]]]]]]


def measure(
    team: Team,
    names: Sequence[str],
    tensors: Sequence[Tensor],
    plans_of: Plans,
    link_rate: float,
    until: float,
    progress: Progress,
) -> tuple[Timed, tuple[str, ...]]:
    """What operations take, by the slowest rank.

    Args:
      team: who measures.
      names: of operations.
      tensors: of which the first one of each dtype is what ranks pass in.
      plans_of: says what is timed, the same on all ranks.
      link_rate: the bytes per second of the fastest link between hosts; 0 where there is one host.
      until: when to stop, by ``time.monotonic`` of the rank that comes there first.
      progress: keeps what is measured.

    Returns:
      By operation, dtype, codec and algorithm pairs of bytes and seconds; and what there was no
      time for.
    """
    found: Timed = {}
    before_bytes = int(_BUSY_SECONDS * link_rate)
    left_out = []
    by_dtype = {each.values.dtype.name: each.values for each in reversed(tensors)}
    for size, name, dtype in _cases(names, by_dtype):
        x = operand(by_dtype[dtype], size, team.size if NAMES[name] else 0)
        plans = plans_of(name, dtype, x.nbytes)
        if not plans:
            continue
        step = f"{name} of {size >> 10} KiB of {dtype}"
        if not progress.has(step) and team.gather([time.monotonic() > until]).any():
            left_out.append(step)
            continue
        calls = [team.collective(name, *plan) for plan in plans]
        took = progress.step(
            step, len(plans), functools.partial(team.time_in_turns, calls, x, before_bytes)
        )
        for (algorithm, codec), seconds in zip(plans, took, strict=True):
            by_algorithm = found.setdefault(name, {}).setdefault(dtype, {}).setdefault(codec, {})
            by_algorithm.setdefault(algorithm, []).append([x.nbytes, seconds])
    return found, tuple(left_out)


def fastest(by_codec: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> Iterator[str]:
    """For each size that was timed, what was fastest, as text."""
    found: dict[int, tuple[float, str]] = {}
    for codec, by_algorithm in by_codec.items():
        for algorithm, rows in by_algorithm.items():
            for size, seconds in rows:
                option = (seconds, f"{algorithm}, {codec}")
                found[int(size)] = min(found.get(int(size), option), option)
    for size, (seconds, plan) in sorted(found.items()):
        yield f"{size >> 10:>8} KiB {seconds * 1e3:>10.3f} ms  {plan}"


def _cases(names: Sequence[str], dtypes: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Small values first, so that all operations have some where time runs out."""
    for size in SIZES:
        for name in names:
            for dtype in dtypes:
                yield size, name, dtype


def operand(values: np.ndarray, size: int, rows: int) -> np.ndarray:
    """So many bytes of the values, over and over, as so many rows; flat where there are none."""
    count = size // values.dtype.itemsize
    flat = np.resize(values, count // max(rows, 1) * max(rows, 1))
    return flat.reshape(rows, -1) if rows else flat

"""Checks a comparison against the acceptance thresholds of this package."""

from __future__ import annotations

from bench import contenders
from bench.compare import Measurement, Results
from jaxccomp._native import terminal

SUBJECT = "jaxccomp"
# From LARGE_BYTES on, either the fastest jitted peer takes at least TIMES_OF_PEER times as long as
# this package, or this package takes at most TIMES_OF_MEMORY times as long as contender "memory".
LARGE_BYTES, TIMES_OF_PEER, TIMES_OF_MEMORY = 4 << 20, 1.5, 1.2
_LARGE = ("bcast", "allreduce", "allgather")
_WITHOUT_JAX = "mpi4py"


def lines(results: Results) -> list[str]:
    """One line per threshold: at how many points it is met, and by how much it is missed."""
    own = [row for row in results.values() if row.contender == SUBJECT and row.rounds_us]
    peers = {row.name for row in contenders.TABLE if row.jitted_peer}
    faster, slow, compared = [], [], 0
    for row in own:
        rivals = [each for each in _others(results, row) if each.contender in peers]
        compared += bool(rivals)
        best = min(rivals, key=lambda each: each.median_us, default=None)
        if best and best.median_us < row.median_us:
            faster.append(f"{_point(row)} ({best.contender}, {_times(best, row)})")
        memory = _find(results, "memory", row)
        if not best or row.operation not in _LARGE or row.size_bytes < LARGE_BYTES:
            continue
        of_memory = memory.median_us * TIMES_OF_MEMORY if memory else 0.0
        if best.median_us < TIMES_OF_PEER * row.median_us and row.median_us > of_memory:
            limit = f", memory {_times(memory, row)}" if memory else ""
            slow.append(f"{_point(row)} ({best.contender} {_times(best, row)}{limit})")
    large = [row for row in own if row.operation in _LARGE and row.size_bytes >= LARGE_BYTES]
    bare = [_find(results, _WITHOUT_JAX, row) for row in own]
    ahead = [
        f"{_point(row)} ({_times(each, row)})"
        for row, each in zip(own, bare, strict=True)
        if each and each.median_us < row.median_us and row.size_bytes > 64 << 10
    ]
    said = []
    if compared:
        said.append(_line("no jitted peer is faster", compared, faster))
    if compared and large:
        said.append(
            _line(
                f"from {terminal.format_size(LARGE_BYTES)} on {', '.join(_LARGE)} take the fastest "
                f"jitted peer {TIMES_OF_PEER:g} times as long, or this package at most "
                f"{TIMES_OF_MEMORY:g} times what memory takes",
                len(large),
                slow,
            )
        )
    if any(bare):
        said.append(
            f"- {_WITHOUT_JAX}, on buffers that are used again and without JAX, is faster above "
            f"64 KiB at: {'; '.join(ahead) or 'none'}."
        )
    return said


def _line(bar: str, points: int, misses: list[str]) -> str:
    met = f"at {points - len(misses)} of {points} points"
    return f"- {'Not met' if misses else 'Met'}: {bar}: {met}" + (
        f". But: {'; '.join(misses)}." if misses else "."
    )


def _others(results: Results, row: Measurement) -> list[Measurement]:
    found = [_find(results, each.name, row) for each in contenders.TABLE if each.name != SUBJECT]
    return [each for each in found if each]


def _find(results: Results, name: str, row: Measurement) -> Measurement | None:
    found = results.get((name, row.operation, row.size_bytes))
    return found if found and found.rounds_us else None


def _point(row: Measurement) -> str:
    return f"{row.operation} of {terminal.format_size(row.size_bytes)}"


def _times(other: Measurement, row: Measurement) -> str:
    return f"{other.median_us / row.median_us:.2f} x"

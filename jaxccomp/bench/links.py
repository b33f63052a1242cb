"""Measures latency and bandwidth of messages within and between hosts.

It measures a few pairs of each class, and all links between hosts at the same time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jaxccomp.bench.progress import Progress
from jaxccomp.bench.team import PING_PONGS, Team, values

_MOST_PAIRS = 3  # within hosts
_SMALL_BYTES = 8
_FIRST_BYTES, _MOST_BYTES = 1 << 20, 64 << 20
# Within a host. Larger results would be received into new memory, and page faults measured.
_MOST_BYTES_IN_MEMORY = 16 << 20
_LINK_SECONDS = 0.25  # target duration of a transfer
# Links that differ by at most this fraction get the median of all: then one host can be simulated
# for all.
_ALIKE = 0.15
# CPU time of a message at both ends, which is subtracted from the measured latency: not measured
# but assumed, processor_seconds and two tasks with the defaults of jaxccomp.schedules.
_MESSAGE_SECONDS = {"host": 2 * 2e-6 + 2 * 2e-6, "link": 2 * 1e-5 + 2 * 2e-6}
_LEAST_LATENCY = 1e-6


def within_hosts(
    team: Team, hosts: Sequence[Sequence[int]], progress: Progress
) -> dict[str, float]:
    """Measures messages between processes of one host; at least one host must have several."""
    several = [members for members in hosts if len(members) > 1]
    pairs = [(members[0], members[-1]) for members in several[:_MOST_PAIRS]]

    def measure() -> list[float]:
        rates = [_rate(team, {a: b}, _MOST_BYTES_IN_MEMORY)[b] for a, b in pairs]
        return [_latency(team, pairs, "host"), statistics.median(rates)]

    latency, rate = progress.step("messages within a host", 2, measure)
    return {"latency_seconds": latency, "bytes_per_second": rate}


def between_hosts(
    team: Team, hosts: Sequence[Sequence[int]], progress: Progress
) -> tuple[dict[str, float], list[tuple[float, float]]]:
    """Measures messages between hosts; also returns by host its link's send and receive rate."""
    first, half = hosts[0][0], len(hosts) // 2
    pairs = list(dict.fromkeys([(first, hosts[1][0]), (first, hosts[half][0])]))
    (latency,) = progress.step("latency between hosts", 1, lambda: [_latency(team, pairs, "link")])
    rates = progress.step(
        "links between hosts",
        2 * len(hosts),
        lambda: [rate for both in _links(team, hosts) for rate in both],
    )
    return {"latency_seconds": latency}, list(zip(rates[::2], rates[1::2], strict=True))


def groups(
    hosts: Sequence[Sequence[int]],
    cores: Sequence[int],
    links: Sequence[tuple[float, float]],
) -> list[dict[str, Any]]:
    """The hosts of a profile: consecutive equal hosts form a group.

    Args:
      hosts: the ranks of each host.
      cores: the cores of each host.
      links: bytes per second up and down of each host; empty with one host.
    """
    names = ("up_bytes_per_second", "down_bytes_per_second")
    rows = [[each[way] for each in links] for way in range(2)]
    middle = [statistics.median(row) if row else 0.0 for row in rows]
    alike = [
        all(abs(rate - m) <= _ALIKE * m for rate in row)
        for row, m in zip(rows, middle, strict=True)
    ]
    made: list[dict[str, Any]] = []
    for i, (members, core) in enumerate(zip(hosts, cores, strict=True)):
        host: dict[str, Any] = {"ranks": len(members), "cores": core}
        if links:
            host |= {
                name: middle[way] if alike[way] else links[i][way] for way, name in enumerate(names)
            }
        if made and {k: v for k, v in made[-1].items() if k != "count"} == host:
            made[-1]["count"] += 1
        else:
            made.append({"count": 1} | host)
    return made


def _latency(team: Team, pairs: Sequence[tuple[int, int]], kind: str) -> float:
    found = []
    for a, b in pairs:
        taken = team.time(team.ping_pongs(a, b), values(_SMALL_BYTES))
        found.append(float(team.gather([taken])[a, 0]) / (2 * PING_PONGS))
    return max(statistics.median(found) - _MESSAGE_SECONDS[kind], _LEAST_LATENCY)


def _rate(team: Team, to: Mapping[int, int], most_bytes: int = _MOST_BYTES) -> dict[int, float]:
    """By receiver, its bytes per second while all pairs transfer at once."""
    call = team.transfers(to)
    receivers = list(to.values())
    empty = team.gather([team.time(call, values(_SMALL_BYTES))])[:, 0]

    def rates(size: int) -> dict[int, float]:
        taken = team.gather([team.time(call, values(size))])[:, 0]
        return {r: size / max(taken[r] - empty[r], 1e-3 * taken[r]) for r in receivers}

    first = rates(_FIRST_BYTES)
    size = int(min(max(min(first.values()) * _LINK_SECONDS, 1), most_bytes)) // 4 * 4
    return first if size <= _FIRST_BYTES else rates(size)


def _links(team: Team, hosts: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """By host, bytes per second that its link sends and receives."""
    count = len(hosts)
    up, down = [0.0] * count, [0.0] * count
    # To the next host, then to the previous one, so that a slow link does not hide its neighbours.
    for step in (1, count - 1):
        to, of = {}, []
        for i, members in enumerate(hosts):
            other = hosts[(i + step) % count]
            for a, b in zip(members, other, strict=False):
                to[a] = b
                of.append((i, (i + step) % count, b))
        found = _rate(team, to)
        edges: dict[tuple[int, int], float] = {}
        for a, b, receiver in of:
            edges[a, b] = edges.get((a, b), 0.0) + found[receiver]
        for (a, b), rate in edges.items():
            up[a], down[b] = max(up[a], rate), max(down[b], rate)
    return list(zip(up, down, strict=True))

"""Measures a profile: links, memory and codecs of the world's ranks (docs/planner.md).

Ranks exchange every value that decides what to measure next, so that all take the same branches.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxccomp import codecs
from jaxccomp._native import engine
from jaxccomp._native.version import __version__
from jaxccomp.bench import calls, machine
from jaxccomp.bench.files import Tensor
from jaxccomp.bench.team import PING_PONGS, Progress, Team, values

# --- Links ----------------------------------------------------------------------------------------

_MAX_PAIRS = 3  # within hosts
_SMALL_BYTES = 8
_FIRST_BYTES, _MAX_BYTES = 1 << 20, 64 << 20
# The limit within a host. Larger results are received into new memory, and their page faults would
# be measured.
_MAX_BYTES_IN_MEMORY = 16 << 20
_LINK_SECONDS = 0.25  # target duration of a transfer
# If all links are within this fraction of the median, the profile gives them the median, so that
# the planner simulates one host for all.
_ALIKE = 0.15
# Assumed CPU time of a message at both ends, subtracted from the measured latency: at each end
# processor_seconds and a task, by the defaults of jaxccomp.schedules.
_MESSAGE_SECONDS = {"host": 2 * 2e-6 + 2 * 2e-6, "link": 2 * 1e-5 + 2 * 2e-6}
_MIN_LATENCY = 1e-6


def within_hosts(
    team: Team, hosts: Sequence[Sequence[int]], progress: Progress
) -> dict[str, float]:
    """Measures messages between processes of one host; at least one host must have several."""
    several = [members for members in hosts if len(members) > 1]
    pairs = [(members[0], members[-1]) for members in several[:_MAX_PAIRS]]

    def measure() -> list[float]:
        rates = [_rate(team, {a: b}, _MAX_BYTES_IN_MEMORY)[b] for a, b in pairs]
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
    return max(statistics.median(found) - _MESSAGE_SECONDS[kind], _MIN_LATENCY)


def _rate(team: Team, to: Mapping[int, int], max_bytes: int = _MAX_BYTES) -> dict[int, float]:
    """By receiver, its bytes per second while all pairs transfer at the same time."""
    call = team.transfers(to)
    receivers = list(to.values())
    empty = team.gather([team.time(call, values(_SMALL_BYTES))])[:, 0]

    def rates(size: int) -> dict[int, float]:
        taken = team.gather([team.time(call, values(size))])[:, 0]
        return {r: size / max(taken[r] - empty[r], 1e-3 * taken[r]) for r in receivers}

    first = rates(_FIRST_BYTES)
    size = int(min(max(min(first.values()) * _LINK_SECONDS, 1), max_bytes)) // 4 * 4
    return first if size <= _FIRST_BYTES else rates(size)


def _links(team: Team, hosts: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """By host, bytes per second that its link sends and receives."""
    count = len(hosts)
    up, down = [0.0] * count, [0.0] * count
    # Send to the next host, then to the previous one, and take the maximum: a slow link then limits
    # the measured rate of a neighbour in at most one direction.
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


# --- Rates of cores and codecs --------------------------------------------------------------------

_CHUNK_BYTES = 1 << 19
_MEMORY_BYTES = 16 << 20
_MIN_SECONDS, _MAX_SECONDS = 0.02, 0.25  # per codec


def memory_rates(team: Team, progress: Progress) -> dict[str, float]:
    """The copy and reduction rates of one core."""

    def measure() -> np.ndarray:
        values = np.ones(_MEMORY_BYTES // 4, np.float32)
        team.gather([0.0])  # a barrier
        found = _measure("raw", values, _MAX_SECONDS)
        return np.median(team.gather([found["copy_rate"], found["merge_rate"]]), axis=0)

    copy, merge = progress.step("memory", 2, measure)
    return {"copy_bytes_per_second": copy, "merge_bytes_per_second": merge}


def coding_rates(
    team: Team,
    specs: Sequence[str],
    tensors: Sequence[Tensor],
    until: float,
    progress: Progress,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Measures compression ratios and rates of codecs.

    Args:
      team: the ranks.
      specs: the codecs.
      tensors: the tensors to encode.
      until: the deadline, by ``time.monotonic``; the first rank to reach it stops all.
      progress: stores the results.

    Returns:
      Rows by spec, and the names of the cases skipped for lack of time.
    """
    cases = [
        (spec, tensor)
        for spec in specs
        for tensor in tensors
        if tensor.values.dtype.name in engine.load().describe_codec(spec)["dtypes"]
    ]
    left = until - time.monotonic()
    each = min(max(left / (2 * max(len(cases), 1)), _MIN_SECONDS), _MAX_SECONDS)
    each = float(team.gather([each]).min())
    rows: dict[str, dict[str, list[Sequence[float]]]] = {}
    left_out = []
    names = Counter[str]()
    for spec, tensor in cases:
        dtype = tensor.values.dtype.name
        name = f"{spec} of {tensor.name} {dtype}"
        names[name] += 1
        if names[name] > 1:  # files of several folders may have one name
            name += f" ({names[name]})"
        if not progress.has(name) and team.gather([time.monotonic() > until]).any():
            left_out.append(name)
            continue
        row = progress.step(name, 4, partial(_coded, team, spec, tensor, each))
        rows.setdefault(spec, {}).setdefault(dtype, []).append(row)
    return {spec: _row(by_dtype) for spec, by_dtype in rows.items()}, tuple(left_out)


# The numbers that `_rates` measures.
_RATES = ("ratio", *(f"{name}_bytes_per_second" for name in ("encode", "decode", "merge")))


def _rates(spec: str, values: np.ndarray, seconds: float) -> list[float]:
    found = _measure(spec, values, seconds)
    ratio = found["value_bytes"] / found["encoded_bytes"]
    # Without a merge rate (dtype without addition), values are only decoded.
    merge = found["merge_rate"] or found["decode_rate"]
    return [ratio, found["encode_rate"], found["decode_rate"], merge]


def _coded(team: Team, spec: str, tensor: Tensor, seconds: float) -> np.ndarray:
    return np.median(team.gather(_rates(spec, tensor.values, seconds)), axis=0)


def here(spec: str, dtype: str, seconds: float = 0.1) -> dict[str, Any]:
    """A codec's ratio and rates on one core of this machine, for Gaussian values of ``dtype``.

    Raises:
      UnknownNameError: for a codec that does not exist.
    """
    codecs.parse(spec)
    values = np.random.default_rng(0).normal(0, 0.02, 1 << 22).astype(dtype)
    return dict(zip(_RATES, _rates(spec, values, seconds), strict=True))


def _row(by_dtype: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Medians over the tensors of each dtype; the dtype with the lowest ratio is the default."""
    made = {
        dtype: dict(zip(_RATES, map(float, np.median(rows, axis=0)), strict=True))
        for dtype, rows in by_dtype.items()
    }
    return min(made.values(), key=lambda row: row["ratio"]) | {"dtypes": made}


def _measure(spec: str, values: np.ndarray, seconds: float) -> dict[str, Any]:
    return engine.load().measure_codec(
        codecs.canonical(spec),
        values.dtype.name,
        values.view(np.uint8),
        None,
        max(_CHUNK_BYTES // values.dtype.itemsize, 1),
        False,
        seconds,
    )


# --- Profiles -------------------------------------------------------------------------------------

SPECS = ("lossless", "bf16", "bf16|lossless", "fp8_e4m3", "int8", "int4")

_CORE_WORDS = 128


@dataclasses.dataclass(frozen=True)
class Plan:
    """The parameters of a measurement.

    Attributes:
      tensors: the tensors for codecs.
      specs: the codecs.
      within_seconds: the time after which no further codec is measured.
    """

    tensors: Sequence[Tensor]
    specs: tuple[str, ...] = SPECS
    within_seconds: float = 120.0


@dataclasses.dataclass(frozen=True)
class Measured:
    """A profile, and the cases skipped for lack of time.

    Attributes:
      profile: the JSON content, without its version.
      left_out: the skipped cases.
    """

    profile: dict[str, Any]
    left_out: tuple[str, ...]


def measure(
    team: Team,
    plan: Plan,
    tell: Callable[[str], None],
    kept: bytes = b"",
    keep: Callable[[bytes], None] | None = None,
) -> Measured:
    """Measures a profile. Collective; the result is the same on all ranks.

    Args:
      team: all ranks.
      plan: the parameters.
      tell: called with progress messages.
      kept: on rank 0, the checkpoint of an unfinished measurement.
      keep: called by rank 0 with new checkpoints; None: no checkpoints.
    """
    until = time.monotonic() + plan.within_seconds
    hosts = team.hosts()
    tell(f"ranks: {team.size}, hosts: {len(hosts)}")
    progress = Progress(team, _setup(team, hosts, plan), kept, keep, tell)
    cores, one_machine = _cores(team, hosts)
    pairs: dict[str, Any] = {}
    if any(len(members) > 1 for members in hosts):
        pairs["host"] = within_hosts(team, hosts, progress)
    between: Sequence[tuple[float, float]] = []
    if len(hosts) > 1:
        pairs["link"], between = between_hosts(team, hosts, progress)
    memory = memory_rates(team, progress)
    (memory["call_seconds"],) = progress.step("a call", 1, lambda: [_call_seconds(team)])
    profile = {
        "hosts": groups(hosts, cores, between),
        "transport": _transport(team),
        "pairs": pairs,
        "one_machine": one_machine,
        "memory": memory,
    }
    profile["codecs"], left_out = coding_rates(team, plan.specs, plan.tensors, until, progress)
    if team.size > 1:
        (profile["step_seconds"],) = progress.step(
            "a training step", 1, lambda: [calls.measure_steps(team)]
        )
    profile["measured"] = {
        "jaxccomp": __version__,
        "processor": machine.processor(),
        "instruction_set": engine.load().describe()["instruction_set"],
        "tensors": sorted({each.name for each in plan.tensors}),
    }
    return Measured(_rounded(profile), left_out)


def _setup(team: Team, hosts: Sequence[Sequence[int]], plan: Plan) -> dict[str, Any]:
    """Everything that results depend on and that the names of steps do not contain."""
    return {
        "jaxccomp": __version__,
        "hosts": [list(members) for members in hosts],
        "kernels": team.gather([machine.kernel()])[:, 0].tolist(),
        "transport": _transport(team),
        "processor": machine.processor(),
        "tensors": [
            [each.name, each.values.dtype.name, zlib.crc32(each.values.view(np.uint8).data)]
            for each in plan.tensors
        ],
    }


def _transport(team: Team) -> str:
    """The transport between ranks; empty for one rank."""
    if team.size == 1:
        return ""
    found = {each.partition("+")[0] for each in engine.load().describe()["transports"]}
    return "".join(found - {"local"})


def _rounded(content: Any) -> Any:
    """Rounds all floats to six digits, more than the measurement's precision."""
    if isinstance(content, dict):
        return {name: _rounded(each) for name, each in content.items()}
    if isinstance(content, list):
        return [_rounded(each) for each in content]
    return float(f"{content:.6g}") if isinstance(content, float) else content


def _cores(team: Team, hosts: Sequence[Sequence[int]]) -> tuple[list[int], bool]:
    """By host the number of cores that its ranks may use; and whether all hosts share cores."""
    words = [0] * _CORE_WORDS  # of 32 cores each, which a float holds exactly
    for core in os.sched_getaffinity(0):
        words[core // 32 % _CORE_WORDS] |= 1 << core % 32
    rows = team.gather([*words, machine.kernel()])
    masks = rows[:, :-1].astype(np.uint64)
    found = []
    for members in hosts:
        union = np.bitwise_or.reduce(masks[list(members)], axis=0)
        found.append(sum(int(word).bit_count() for word in union))
    kernels = set(rows[:, -1])
    return found, len(hosts) > 1 and len(kernels) == 1 and kernels != {0.0}


def _call_seconds(team: Team) -> float:
    taken = team.time(team.alone(), values(8))
    return float(np.median(team.gather([taken])))

"""Measures a profile: links, memory and codecs of the world's ranks (docs/planner.md).

Ranks exchange every value that decides what to measure next, so that all take the same branches.
"""

from __future__ import annotations

import dataclasses
import os
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxccomp._native import engine
from jaxccomp._native.version import __version__
from jaxccomp.bench import links, machine, rates, steps
from jaxccomp.bench.files import Tensor
from jaxccomp.bench.progress import Progress
from jaxccomp.bench.team import Team, values

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
        pairs["host"] = links.within_hosts(team, hosts, progress)
    between: Sequence[tuple[float, float]] = []
    if len(hosts) > 1:
        pairs["link"], between = links.between_hosts(team, hosts, progress)
    memory = rates.memory(team, progress)
    (memory["call_seconds"],) = progress.step("a call", 1, lambda: [_call_seconds(team)])
    profile = {
        "hosts": links.groups(hosts, cores, between),
        "transport": _transport(),
        "pairs": pairs,
        "one_machine": one_machine,
        "memory": memory,
    }
    profile["codecs"], left_out = rates.coding(team, plan.specs, plan.tensors, until, progress)
    if team.size > 1:
        (profile["step_seconds"],) = progress.step(
            "a training step", 1, lambda: [steps.measure(team)]
        )
    profile["measured"] = {
        "jaxccomp": __version__,
        "processor": machine.processor(),
        "instruction_set": engine.load().describe()["instruction_set"],
        "tensors": sorted({each.name for each in plan.tensors}),
    }
    return Measured(_rounded(profile), left_out)


def _setup(team: Team, hosts: Sequence[Sequence[int]], plan: Plan) -> dict[str, Any]:
    """Everything that results depend on, except their names."""
    return {
        "jaxccomp": __version__,
        "hosts": [list(members) for members in hosts],
        "kernels": team.gather([machine.kernel()])[:, 0].tolist(),
        "transport": _transport(),
        "processor": machine.processor(),
        "tensors": [
            [each.name, each.values.dtype.name, zlib.crc32(each.values.view(np.uint8))]
            for each in plan.tensors
        ],
    }


def _transport() -> str:
    """The transport between ranks; empty for one rank."""
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

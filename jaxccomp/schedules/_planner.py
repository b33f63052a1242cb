"""Chooses algorithms and codecs by predicted time, from a profile (docs/planner.md).

A choice depends only on the call, the profile and the placement of ranks on hosts, which all ranks
share: all ranks make the same choice.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from jaxccomp import config
from jaxccomp.schedules._candidates import (
    GAIN,
    RAW,
    Candidates,
    Choice,
    Option,
    Request,
    Sizes,
    choice_of,
    first_of_gain,
)
from jaxccomp.schedules._cluster import Cluster, Groups, Layout
from jaxccomp.schedules._make import COLLECTIVES

# --- The choice by predicted time: candidates that cannot win are pruned before simulation --------

# Candidates this many times slower than the fastest coarse estimate are pruned.
_HOPELESS = 8.0
# Parts of blocks are rounded to whole elements.
_ROUNDED = 0.98
# The next codec is tried with the algorithms within this factor of the previous codec's fastest.
_NEAR = 1.5
# Another chunk must be predicted faster by this fraction. On the testbed, chunks with a predicted
# gain of 5 to 25 % gained nothing in the median; of seven with more, five gained 17 to 60 %.
_CHUNK_GAIN = 0.2


def _choose(request: Request, candidates: Candidates, every_option: bool) -> Choice | None:
    """Chooses by predicted time.

    Unless ``every_option``, candidates that cannot win are not simulated, or their simulation ends
    early. A candidate slower than `_NEAR` times another candidate is neither chosen nor tried with
    the next codec. No candidate is faster than the lower bound from the bytes on the links.
    """
    search = _Search(candidates, every_option)
    chosen: Option | None = None
    for codec in candidates.codecs():
        bar = (1 - GAIN) * chosen.seconds if chosen else math.inf
        if request.algorithm == "auto":
            found = search.best(codec, bar)
        else:
            found = candidates.price(request.algorithm, codec)
        if found and found.seconds < bar:
            chosen = found
    return choice_of(chosen, candidates.options)


@dataclasses.dataclass
class _Stage:
    """The candidates with one codec.

    Attributes:
      codec: a spec.
      seconds: predicted time by algorithm; infinite if its simulation was ended early.
      best: the fastest.
    """

    codec: str
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    best: Option | None = None

    def near(self) -> set[str]:
        """The algorithms to try with the next codec."""
        minimum = min(self.seconds.values(), default=math.inf)
        return {name for name, each in self.seconds.items() if each <= _NEAR * minimum}


class _Search:
    """Predicts the time of the candidates, codec by codec."""

    def __init__(self, candidates: Candidates, every_option: bool):
        self._candidates, self._every_option = candidates, every_option
        self._stages: list[_Stage] = []
        self._rule_is_at_floor = True  # until a predicted time shows otherwise
        # By algorithm: seconds of its raw bytes on the links, scaled to the call's size.
        self._raw_floors: dict[str, float] = {}

    def best(self, codec: str, bar_seconds: float) -> Option | None:
        """Returns the fastest candidate with this codec.

        Returns None if the lower bound shows that no candidate is faster than ``bar_seconds``.
        """
        self._stages.append(_Stage(codec))
        if not self._every_option:
            floor = self._candidates.floor_seconds(codec)
            if floor >= bar_seconds:
                return None
            if self._rule_is_at_floor:
                rule = self._candidates.price("auto", codec)
                self._rule_is_at_floor = rule is not None and floor >= (1 - GAIN) * rule.seconds
                if self._rule_is_at_floor:
                    return rule
        return self._compared(len(self._stages) - 1).best

    def _compared(self, number: int) -> _Stage:
        """Returns the stage, with the predicted times of its algorithms."""
        stage = self._stages[number]
        if stage.seconds:
            return stage
        before = self._compared(number - 1) if number else None
        rule, names = self._candidates.rule(stage.codec), self._candidates.others(stage.codec)
        if before is not None:
            near = before.near()
            names = [name for name in names if name in near]
        known: dict[str, float] = before.seconds if before is not None else {rule: 0.0}
        if before is None and not self._every_option:
            self._candidates.price("auto", stage.codec)  # the baseline for pruning
        names = self._hopeful(names, stage)
        found: dict[str, Option] = {}
        # Start with the previous codec's fastest: a low limit ends later simulations early.
        for name in sorted((rule, *names), key=lambda each: known.get(each, math.inf)):
            limit = self._limit(_NEAR * min(stage.seconds.values(), default=math.inf))
            if self._raw_floors.get(name, 0.0) / self._candidates.ratio(stage.codec) >= limit:
                stage.seconds[name] = math.inf
                continue
            requested = "auto" if name == rule else name
            option = self._candidates.price(requested, stage.codec, limit)
            if option is not None:
                found[name] = option
            stage.seconds[name] = option.seconds if option else math.inf
        ordered = [found[name] for name in (rule, *names) if name in found]
        stage.best = self._with_chunks(stage.codec, ordered)
        return stage

    def _with_chunks(self, codec: str, options: list[Option]) -> Option | None:
        """Returns the fastest option; also tries another chunk for it and for pipelines."""
        usual = first_of_gain(options)
        if usual is None:
            return None
        best = usual
        for each in options:
            requested = self._candidates.with_another_chunk(each.runs)
            may_gain = each is usual or self._candidates.is_pipeline(each.runs)
            if requested is None or not may_gain or each.seconds > _NEAR * usual.seconds:
                continue
            bar = min((1 - _CHUNK_GAIN) * each.seconds, (1 - GAIN) * best.seconds)
            limit = self._limit(bar)
            if self._candidates.floor_seconds(codec) >= limit:
                continue
            found = self._candidates.price(requested, codec, limit)
            if found and found.seconds < bar:
                best = found
            elif found:
                self._candidates.options.remove(found)  # it gains too little to be listed
        return best

    def _limit(self, seconds: float) -> float:
        return math.inf if self._every_option else seconds

    def _hopeful(self, names: list[str], stage: _Stage) -> list[str]:
        """Prunes algorithms whose coarse estimate is many times slower than the fastest."""
        size = self._candidates.sketch_bytes()
        if self._candidates.bytes <= size or len(names) < 3:
            return names
        priced = (each.seconds for each in self._candidates.options if each.codec == stage.codec)
        rule = next(priced, math.inf)
        found = {}
        for name in names:
            minimum = min((each.seconds for each in found.values()), default=math.inf)
            # A whole call takes at least as long as a part of it.
            limit = self._limit(min(_HOPELESS * minimum, _NEAR * rule))
            sketch = self._candidates.sketch(name, stage.codec, limit)
            if sketch is None:
                continue
            found[name] = sketch
            if stage.codec == RAW and not self._every_option:
                part = self._candidates.bytes / size
                self._raw_floors[name] = _ROUNDED * sketch.floor_seconds * part
        minimum = min((each.seconds for each in found.values()), default=0.0)
        return [name for name, each in found.items() if each.seconds <= _HOPELESS * minimum]


# --- Planner --------------------------------------------------------------------------------------

# Simulating more ranks noticeably slows compilation.
_MAX_RANKS = 64
_REMEMBERED = 4096


class Planner:
    """Chooses by a profile.

    Args:
      cluster: the profile.
      hosts: by process of the world, a number for its host.
    """

    def __init__(self, cluster: Cluster, hosts: Sequence[int]):
        self._cluster = cluster
        self._layout = Layout(cluster, hosts)
        self._remembered = functools.lru_cache(_REMEMBERED)(self._choose)

    @property
    def transport(self) -> str:
        """Returns the transport with which the profile was measured; empty if unknown."""
        return self._cluster.transport

    def choose(
        self,
        collective: str,
        *,
        algorithm: str = "auto",
        codecs: tuple[str, ...] = (RAW,),
        sizes: Sizes,
        groups: Groups,
        root: int = 0,
        every_option: bool = False,
    ) -> Choice | None:
        """Chooses how to run a call; returns None if the static rule decides.

        The static rule decides for calls without a prediction: other collectives, calls without
        bytes, a codec that is not in the profile, more than 64 ranks, or ranks that are not
        numbered host by host.

        Args:
          collective: its name.
          algorithm: "auto", or the program's argument.
          codecs: candidate specs, in the order of preference.
          sizes: bytes of a rank's operands, by dtype.
          groups: the processes of the ranks, for each group that makes the call at the same time.
          root: of rooted collectives.
          every_option: whether to predict candidates that cannot win, too; this takes up to a
            second for 64 ranks. The choice is the same.
        """
        request = Request(collective, algorithm, codecs, sizes, groups, root)
        return self._remembered(request, config.get("chunk_bytes"), every_option)

    def _choose(self, request: Request, chunk_bytes: int, every_option: bool) -> Choice | None:
        known = set(self._cluster.codecs) | {RAW}
        if request.collective not in COLLECTIVES or not set(request.codecs) <= known:
            return None
        cluster = self._layout.cluster(request.groups)
        if cluster is None or not 1 < cluster.ranks <= _MAX_RANKS:
            return None
        if sum(size for _, size in request.sizes) == 0:
            return None
        return _choose(request, Candidates(request, cluster, chunk_bytes), every_option)

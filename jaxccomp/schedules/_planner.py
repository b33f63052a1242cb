"""Chooses algorithms and codecs by prices, from a profile that all ranks share (docs/planner.md).

A choice depends on the call, the profile, and who shares a host; so all ranks come to the same one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from jaxccomp import config, errors
from jaxccomp._native import algorithms, engine
from jaxccomp.schedules._description import Cluster, Codec
from jaxccomp.schedules._floors import least_seconds
from jaxccomp.schedules._layout import Groups, Layout
from jaxccomp.schedules._make import COLLECTIVES
from jaxccomp.schedules._prices import Prediction, block_bytes, simulate
from jaxccomp.schedules._timings import Rows, seconds_of

# What is chosen instead of the static rule, of a smaller chunk, or of raw values has to be so much
# faster: less is within the errors of prices.
GAIN = 0.05
# Of larger calls two parts are priced, and the rest goes on as from the smaller to the larger one:
# of blocks of some chunks each, so that both are as long as their bytes take.
_LEAST_CHUNKS, _CHUNKS_OF_A_RANK = 32, 2
_GATHERED_CHUNKS = 8
# What moves values in chunks, and not in a part for each rank.
_NOT_CUT = {
    *(("bcast", name) for name in ("chain", "binomial")),
    *(("allreduce", name) for name in ("one_shot", "recursive_doubling")),
    *(("reduce", name) for name in ("direct", "binomial", "chain")),
    ("scan", "chain"),
    ("exscan", "chain"),
}
# What is so much slower at a size that is priced quickly is not asked again.
_SKETCH_BYTES, _HOPELESS = 2 << 20, 8.0
# What more ranks take to be priced is felt.
_MOST_RANKS = 64
# Parts of blocks are rounded to whole elements.
_ROUNDED = 0.98
# Where each rank has a part of as many bytes, one of them is simulated for all (csrc/planner/
# symmetry.h). On more ranks than a few, sizes that are so many times as large are rounded to that.
_BLOCK_ALIGN, _ROUNDABLE, _FEW_RANKS = 64, 100, 16
# With the next codecs, algorithms are tried that were not so much slower with the one before.
_NEAR = 1.5
# Pipelines of few chunks may gain by smaller ones, those of many by larger ones.
_FEW_CHUNKS, _SMALL_CHUNK, _LARGE_CHUNK = 8, 1 << 17, 1 << 21
_HALF_TYPES = ("bfloat16", "float16")
# Where a sum would be rounded or encoded at each rank that it passes: what merges all values at
# once, as the static rule does.
_MERGED_AT_ONCE = {
    "allreduce": ("one_shot", "two_shot", "hierarchical"),
    "reduce": ("direct",),
    "reduce_scatter": ("direct",),
    "scan": (),
    "exscan": (),
}
# Encodes at each rank what has been decoded.
_RECODED = ("chain_recoded",)
_REMEMBERED = 4096

Sizes = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Option:
    """One way to run a call.

    Attributes:
      algorithm: as operations take it; "auto" is the engine's static rule.
      runs: the name of the algorithm that runs.
      codec: a spec; "raw" for none.
      seconds: what it takes, by the profile.
    """

    algorithm: str
    runs: str
    codec: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Choice:
    """What was chosen for a call.

    Attributes:
      chosen: how it runs.
      others: what was priced beside it, the fastest first.
    """

    chosen: Option
    others: tuple[Option, ...]


@dataclasses.dataclass(frozen=True)
class _Question:
    """The arguments of `Planner.choose`."""

    collective: str
    algorithm: str
    codecs: tuple[str, ...]
    sizes: Sizes
    groups: Groups
    root: int


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
        """What carried values when the profile was measured; empty where it does not say."""
        return self._cluster.transport

    def choose(
        self,
        collective: str,
        *,
        algorithm: str = "auto",
        codecs: tuple[str, ...] = ("raw",),
        sizes: Sizes,
        groups: Groups,
        root: int = 0,
        every_option: bool = False,
    ) -> Choice | None:
        """What to run, or None where the static rule stays.

        It stays for calls that are not priced: of other collectives, of no bytes, of codecs that
        are not in the profile, of more than 64 ranks, and of ranks that are not numbered host by
        host.

        Args:
          collective: its name.
          algorithm: "auto", or what the program asks for.
          codecs: specs to choose from, those to be preferred first.
          sizes: bytes that a rank passes in, by dtype.
          groups: the processes of the ranks, for each group that makes the call at the same time.
          root: of rooted collectives.
          every_option: prices also what cannot be chosen, which takes up to a second for 64 ranks.
            The choice is the same.
        """
        question = _Question(collective, algorithm, codecs, sizes, groups, root)
        return self._remembered(question, config.get("chunk_bytes"), every_option)

    def _choose(self, question: _Question, chunk_bytes: int, every_option: bool) -> Choice | None:
        known = set(self._cluster.codecs) | {"raw"}
        if question.collective not in COLLECTIVES or not set(question.codecs) <= known:
            return None
        cluster = self._layout.cluster(question.groups)
        if cluster is None or not 1 < cluster.ranks <= _MOST_RANKS:
            return None
        if sum(size for _, size in question.sizes) == 0:
            return None
        pricing = _Pricing(question, cluster, chunk_bytes, every_option)
        timings = self._timings(question, chunk_bytes)
        timed = pricing.timed(timings) if timings else None
        return timed or pricing.priced()

    def _timings(
        self, question: _Question, chunk_bytes: int
    ) -> Mapping[str, Mapping[str, Rows]] | None:
        """What was timed of such a call, by codec and algorithm; None where anything differs."""
        whole = (tuple(range(self._cluster.ranks)),)
        if question.groups != whole or chunk_bytes != config.default("chunk_bytes"):
            return None
        if self._cluster.ranks_per_process > 1 or len(question.sizes) > 1:
            return None
        by_dtype = self._cluster.operations.get(question.collective, {})
        ((dtype, _),) = question.sizes
        timings = by_dtype.get(dtype)
        if timings is None and question.codecs == ("raw",):  # whose bytes are like any others
            timings = next(iter(by_dtype.values()), None)
        return timings if timings and set(question.codecs) <= set(timings) else None


@dataclasses.dataclass
class _Stage:
    """The ways to run a call with one codec.

    Attributes:
      codec: a spec.
      row: its ratio and rates; None for "raw".
      seconds: by algorithm what was priced; infinite where that was ended early.
      best: the fastest.
    """

    codec: str
    row: Codec | None
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    best: Option | None = None

    def near(self) -> set[str]:
        """Algorithms that are to be tried with the next codec."""
        least = min(self.seconds.values(), default=math.inf)
        return {name for name, each in self.seconds.items() if each <= _NEAR * least}


class _Pricing:
    """The options of one call, priced as they are asked for.

    What cannot be chosen is left out, or ended early, unless ``every_option``: what is slower than
    `_NEAR` times another one is neither chosen nor tried with the next codec, and nothing is
    faster than what the bytes of its collective take on the links.
    """

    def __init__(self, question: _Question, cluster: Cluster, chunk_bytes: int, every_option: bool):
        self.options: list[Option] = []
        self._question, self._cluster, self._chunk_bytes = question, cluster, chunk_bytes
        self._every_option = every_option
        dtypes = [name for name, _ in question.sizes]
        self._dtype = next((name for name in dtypes if name in _HALF_TYPES), dtypes[0])
        self._bytes = sum(size for _, size in question.sizes)
        self._stages: list[_Stage] = []
        self._rule_is_at_floor = True  # as it seems
        # By algorithm: what its bytes take on the links without a codec. They grow with the size.
        self._raw_floors: dict[str, float] = {}

    def priced(self) -> Choice | None:
        """The choice by prices."""
        chosen: Option | None = None
        for codec in self._question.codecs:
            bar = (1 - GAIN) * chosen.seconds if chosen else math.inf
            found = self.best(codec, bar)
            if found and (chosen is None or found.seconds < (1 - GAIN) * chosen.seconds):
                chosen = found
        return self._choice(chosen)

    def timed(self, timings: Mapping[str, Mapping[str, Rows]]) -> Choice | None:
        """The choice by times and prices; None where nothing that may run was timed at such a size.

        Both are off, and by other things: times by what else the machine did, prices by what they
        know nothing of. What counts is their geometric mean. A codec has to be faster than raw
        values by its price too: short times on more ranks than cores scatter by more than that.
        """
        options: list[Option] = []
        fastest: list[Option] = []  # with each codec
        raw_price = math.inf
        for codec in self._question.codecs:
            row = None if codec == "raw" else self._mixed(codec)
            if codec != "raw" and row is None:
                continue
            found = self._estimated(codec, row, seconds_of(timings[codec], self._bytes))
            options += found
            best = _first_of_gain(list(found))
            if best is None or found[best] >= raw_price:
                continue
            fastest.append(best)
            if codec == "raw":
                raw_price = found[best]
        self.options = options
        return self._choice(_first_of_gain(fastest))

    def _estimated(
        self, codec: str, row: Codec | None, timed: Mapping[str, float]
    ) -> dict[Option, float]:
        """What may run with a codec, and its price in seconds.

        The static rule comes first; of the fastest, another chunk too.
        """
        asked, rule = self._question.algorithm, self._rule(row)
        allowed = (rule, *self._allowed(codec, rule)) if asked == "auto" else (asked,)
        limit = _NEAR * min(timed.values(), default=0.0)
        prices: dict[Option, Option] = {}  # by estimate
        for name, seconds in timed.items():
            if name not in allowed or seconds > limit:
                continue
            price = self._priced(asked if name == rule else name, codec, row)
            if price is not None:
                mean = math.sqrt(seconds * price.seconds)
                prices[dataclasses.replace(price, seconds=mean)] = price
        ordered = sorted(prices, key=lambda each: (each.runs != rule, each.seconds))
        found = {each: prices[each].seconds for each in ordered}
        best = _first_of_gain(ordered)
        if best is None or asked != "auto":
            return found
        price = prices[best]
        other = self._with_chunk(_Stage(codec, row), price)
        if other is None or other == price:
            return found
        faster = best.seconds * other.seconds / price.seconds
        return found | {dataclasses.replace(other, seconds=faster): other.seconds}

    def _choice(self, chosen: Option | None) -> Choice | None:
        if chosen is None:
            return None
        # No set: of equal ones the order has to be the same on all ranks.
        others = [each for each in dict.fromkeys(self.options) if each != chosen]
        others.sort(key=lambda each: each.seconds)
        return Choice(chosen, tuple(others))

    def _mixed(self, codec: str) -> Codec | None:
        return mixed(codec, self._cluster.codecs[codec], self._question.sizes)

    def best(self, codec: str, bar_seconds: float) -> Option | None:
        """The fastest with this codec, where it codes any of the values.

        None where nothing is faster than ``bar_seconds``, as far as that is known early.
        """
        row = None if codec == "raw" else self._mixed(codec)
        if codec != "raw" and row is None:
            return None
        if self._question.algorithm != "auto":
            return self._priced(self._question.algorithm, codec, row)
        stage = _Stage(codec, row)
        self._stages.append(stage)
        if not self._every_option:
            floor = self._floor(row)
            if floor >= bar_seconds:
                return None
            if self._rule_is_at_floor:
                rule = self._priced("auto", codec, row)
                self._rule_is_at_floor = rule is not None and floor >= (1 - GAIN) * rule.seconds
                if self._rule_is_at_floor:
                    return rule
        return self._compared(len(self._stages) - 1).best

    def _compared(self, number: int) -> _Stage:
        """A stage whose algorithms are priced."""
        stage = self._stages[number]
        if stage.seconds:
            return stage
        before = self._compared(number - 1) if number else None
        rule = self._rule(stage.row)
        names = [name for name in self._allowed(stage.codec, rule) if name != rule]
        if before is not None:
            near = before.near()
            names = [name for name in names if name in near]
        known: dict[str, float] = before.seconds if before is not None else {rule: 0.0}
        if before is None and not self._every_option:
            self._priced("auto", stage.codec, stage.row)  # what others are measured by
        names = self._hopeful(names, stage)
        found: dict[str, Option] = {}
        # Those first that were fast before, as what comes later is then ended the earlier.
        for name in sorted((rule, *names), key=lambda each: known.get(each, math.inf)):
            limit = self._limit(_NEAR * min(stage.seconds.values(), default=math.inf))
            ratio = stage.row.ratio if stage.row else 1.0
            if self._raw_floors.get(name, 0.0) / ratio >= limit:
                stage.seconds[name] = math.inf
                continue
            asked = "auto" if name == rule else name
            option = self._priced(asked, stage.codec, stage.row, limit=limit)
            if option is not None:
                found[name] = option
            stage.seconds[name] = option.seconds if option else math.inf
        ordered = [found[name] for name in (rule, *names) if name in found]
        stage.best = self._with_chunk(stage, _first_of_gain(ordered))
        return stage

    def _with_chunk(self, stage: _Stage, best: Option | None) -> Option | None:
        """With another chunk, where that is faster."""
        chunks = self._bytes / self._chunk_bytes
        if best is None or chunks <= 1:
            return best
        chunk = _SMALL_CHUNK if chunks <= _FEW_CHUNKS else _LARGE_CHUNK
        limit = self._limit((1 - GAIN) * best.seconds)
        if self._floor(stage.row) >= limit:
            return best
        asked = f"{best.runs}:chunk={chunk}"
        found = self._priced(asked, stage.codec, stage.row, chunk, limit)
        return found if found and found.seconds < (1 - GAIN) * best.seconds else best

    def _limit(self, seconds: float) -> float:
        return math.inf if self._every_option else seconds

    def _floor(self, row: Codec | None) -> float:
        return least_seconds(
            self._question.collective,
            self._cluster,
            self._bytes,
            self._question.root,
            row.ratio if row else 1.0,
        )

    def _rule(self, row: Codec | None) -> str:
        """The algorithm that "auto" is."""
        hosts = [i for i, host in enumerate(self._cluster.hosts) for _ in range(host.ranks)]
        return engine.load().default_algorithm(
            self._question.collective,
            hosts,
            block_bytes(self._question.collective, self._bytes, len(hosts)),
            row is not None,
            self._dtype in _HALF_TYPES,
        )

    def _allowed(self, codec: str, rule: str) -> list[str]:
        """Algorithms that round and encode no more often than ``rule``, the static rule's."""
        collective = self._question.collective
        names = [name for name in algorithms.own_names(collective) if name not in _RECODED]
        lossy = codec != "raw" and not engine.load().describe_codec(codec)["lossless"]
        if collective in _MERGED_AT_ONCE and (lossy or self._dtype in _HALF_TYPES):
            names = [name for name in names if name in _MERGED_AT_ONCE[collective]]
        if lossy and rule == "one_shot":
            names = []  # it encodes each value once, all others of allreduce encode sums again
        if all(host.ranks == 1 for host in self._cluster.hosts):
            names = [name for name in names if name != "hierarchical"]  # it is then two_shot
        return names

    def _simulated(
        self, algorithm: str, row: Codec | None, size: int, limit: float = math.inf
    ) -> Prediction:
        ranks, even = self._cluster.ranks, _BLOCK_ALIGN * self._cluster.ranks
        if self._question.collective == "allreduce" and ranks > _FEW_RANKS:
            if size > _ROUNDABLE * even:
                size = -(-size // even) * even
        return simulate(
            self._question.collective,
            self._rule(row) if algorithm == "auto" else algorithm,
            cluster=self._cluster,
            size_bytes=size,
            codec=row,
            dtype=self._dtype,
            root=self._question.root,
            chunk_bytes=self._chunk_bytes,
            limit_seconds=limit,
        )

    def _priced(
        self,
        algorithm: str,
        codec: str,
        row: Codec | None,
        chunk_bytes: int = 0,
        limit: float = math.inf,
    ) -> Option | None:
        """An option; None where it takes the limit at least, or too many tasks."""
        known = [e for e in self.options if (e.algorithm, e.codec) == (algorithm, codec)]
        if known:
            return known[0]
        if not algorithms.has(self._question.collective, algorithm):
            return None
        name = algorithm.partition(":")[0]
        most = self._most_bytes(
            self._rule(row) if name == "auto" else name, chunk_bytes or self._chunk_bytes
        )
        try:
            if self._bytes <= most:
                found = self._simulated(algorithm, row, self._bytes, limit)
                seconds = found.seconds
            else:
                # As far as the whole is beyond the larger part, in units between the two.
                beyond = (self._bytes - most) / (most - most // 2)
                less = self._simulated(algorithm, row, most // 2, limit)
                if less.ended_early:
                    return None
                of_part = (limit + less.seconds * beyond) / (1 + beyond)
                found = self._simulated(algorithm, row, most, of_part)
                seconds = found.seconds + max(found.seconds - less.seconds, 0.0) * beyond
        except errors.InvalidArgumentError:  # too many tasks to be simulated
            return None
        if found.ended_early:
            return None
        option = Option(algorithm, found.algorithm, codec, seconds)
        self.options.append(option)
        return option

    def _most_bytes(self, algorithm: str, chunk_bytes: int) -> int:
        collective, ranks = self._question.collective, self._cluster.ranks
        if collective in ("allgather", "gather"):  # blocks are not cut
            return _GATHERED_CHUNKS * chunk_bytes
        if (collective, algorithm) in _NOT_CUT:
            return _LEAST_CHUNKS * chunk_bytes
        chunks = max(_LEAST_CHUNKS, _CHUNKS_OF_A_RANK * ranks)
        if algorithm == "hierarchical":  # a part for each host
            hosts = len(self._cluster.hosts)
            chunks = min(chunks, max(2 * _LEAST_CHUNKS, 2 * _CHUNKS_OF_A_RANK * hosts))
        return chunks * chunk_bytes

    def _hopeful(self, names: list[str], stage: _Stage) -> list[str]:
        """Without those that take many times as long at a smaller size."""
        size = min(_SKETCH_BYTES, self._most_bytes("", self._chunk_bytes) // 2)
        if self._bytes <= size or len(names) < 3:
            return names
        rule = next((each.seconds for each in self.options if each.codec == stage.codec), math.inf)
        found = {}
        for name in names:
            least = min((each.seconds for each in found.values()), default=math.inf)
            # Of the whole, nothing takes less time than of a part.
            limit = self._limit(min(_HOPELESS * least, _NEAR * rule))
            try:
                sketch = self._simulated(name, stage.row, size, limit)
            except errors.InvalidArgumentError:  # too many tasks to be simulated
                continue
            if sketch.ended_early:
                continue
            found[name] = sketch
            if stage.row is None and not self._every_option:
                self._raw_floors[name] = _ROUNDED * sketch.floor_seconds * self._bytes / size
        least = min((each.seconds for each in found.values()), default=0.0)
        return [name for name, each in found.items() if each.seconds <= _HOPELESS * least]


def _first_of_gain(options: Sequence[Option]) -> Option | None:
    """The first one, or a later one that is faster by what a choice has to gain."""
    best: Option | None = None
    for each in options:
        if best is None or each.seconds < (1 - GAIN) * best.seconds:
            best = each
    return best


def mixed(spec: str, codec: Codec, sizes: Sizes) -> Codec | None:
    """A codec of values of several dtypes, of which it may code some; None where it codes none."""
    coded = set(engine.load().describe_codec(spec)["dtypes"])
    total = sum(size for _, size in sizes)
    sent = sum(size / (codec.of(name).ratio if name in coded else 1.0) for name, size in sizes)
    rows = Counter[str]()
    for name, size in sizes:
        if name in coded:
            row = codec.of(name)
            rows["encode"] += size / row.encode_bytes_per_second
            rows["decode"] += size / row.decode_bytes_per_second
            rows["merge"] += size / row.merge_bytes_per_second
    if not rows["encode"]:
        return None
    rates = {f"{name}_bytes_per_second": total / seconds for name, seconds in rows.items()}
    return Codec(ratio=total / sent, most_code_bytes=codec.most_code_bytes, **rates)

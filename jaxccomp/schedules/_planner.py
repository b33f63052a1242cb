"""Chooses algorithms and codecs by prices, from a profile that all ranks share (docs/planner.md).

A choice depends on the call, the profile, and who shares a host; so all ranks come to the same one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence

from jaxccomp import config, errors
from jaxccomp._native import engine
from jaxccomp.schedules._description import Cluster, Codec
from jaxccomp.schedules._layout import Groups, Layout
from jaxccomp.schedules._make import COLLECTIVES
from jaxccomp.schedules._prices import algorithms, simulate

# What is chosen instead of the static rule, of a smaller chunk, or of raw values has to be so much
# faster: less is within the errors of prices.
GAIN = 0.05
# Of larger calls two parts are priced, and the rest goes on as from the smaller to the larger one:
# of blocks of some chunks each, so that both are as long as their bytes take.
_LEAST_CHUNKS, _CHUNKS_OF_A_RANK, _GATHERED_CHUNKS = 32, 2, 8
# What is so much slower at a size that is priced quickly is not asked again.
_SKETCH_BYTES, _HOPELESS = 2 << 20, 8.0
# What more ranks take to be priced is felt.
_MOST_RANKS = 64
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
      others: all that was priced beside it, the fastest first.
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

    def choose(
        self,
        collective: str,
        *,
        algorithm: str = "auto",
        codecs: tuple[str, ...] = ("raw",),
        sizes: Sizes,
        groups: Groups,
        root: int = 0,
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
        """
        question = _Question(collective, algorithm, codecs, sizes, groups, root)
        return self._remembered(question, config.get("chunk_bytes"))

    def _choose(self, question: _Question, chunk_bytes: int) -> Choice | None:
        known = set(self._cluster.codecs) | {"raw"}
        if question.collective not in COLLECTIVES or not set(question.codecs) <= known:
            return None
        cluster = self._layout.cluster(question.groups)
        if cluster is None or not 1 < cluster.ranks <= _MOST_RANKS:
            return None
        if sum(size for _, size in question.sizes) == 0:
            return None
        pricing = _Pricing(question, cluster, chunk_bytes)
        chosen: Option | None = None
        for codec in question.codecs:
            found = pricing.best(codec)
            if found and (chosen is None or found.seconds < (1 - GAIN) * chosen.seconds):
                chosen = found
        if chosen is None:
            return None
        others = sorted(set(pricing.options) - {chosen}, key=lambda each: each.seconds)
        return Choice(chosen, tuple(others))


class _Pricing:
    """The options of one call, priced as they are asked for."""

    def __init__(self, question: _Question, cluster: Cluster, chunk_bytes: int):
        self.options: list[Option] = []
        self._question, self._cluster, self._chunk_bytes = question, cluster, chunk_bytes
        dtypes = [name for name, _ in question.sizes]
        self._dtype = next((name for name in dtypes if name in _HALF_TYPES), dtypes[0])
        self._bytes = sum(size for _, size in question.sizes)
        self._near: set[str] | None = None

    def best(self, codec: str) -> Option | None:
        """The fastest with this codec, where it codes any of the values."""
        sizes = self._question.sizes
        row = None if codec == "raw" else mixed(codec, self._cluster.codecs[codec], sizes)
        if codec != "raw" and row is None:
            return None
        best = first = self._priced(self._question.algorithm, codec, row)
        if first is None or self._question.algorithm != "auto":
            return first
        names = [name for name in self._allowed(codec, first.runs) if name != first.runs]
        near = {first.runs: first.seconds}
        for name in self._hopeful(names, row):
            if found := self._priced(name, codec, row):
                near[name] = found.seconds
                best = found if found.seconds < (1 - GAIN) * best.seconds else best
        least = min(near.values())
        self._near = {name for name, seconds in near.items() if seconds <= _NEAR * least}
        chunks = self._bytes / self._chunk_bytes
        if chunks > 1:
            chunk = _SMALL_CHUNK if chunks <= _FEW_CHUNKS else _LARGE_CHUNK
            found = self._priced(f"{best.runs}:chunk={chunk}", codec, row, chunk)
            best = found if found and found.seconds < (1 - GAIN) * best.seconds else best
        return best

    def _allowed(self, codec: str, rule: str) -> list[str]:
        """Algorithms that round and encode no more often than ``rule``, the static rule's."""
        collective = self._question.collective
        names = [name for name in algorithms(collective) if name not in _RECODED]
        lossy = codec != "raw" and not engine.load().describe_codec(codec)["lossless"]
        if collective in _MERGED_AT_ONCE and (lossy or self._dtype in _HALF_TYPES):
            names = [name for name in names if name in _MERGED_AT_ONCE[collective]]
        if lossy and rule == "one_shot":
            names = []  # it encodes each value once, all others of allreduce encode sums again
        if all(host.ranks == 1 for host in self._cluster.hosts):
            names = [name for name in names if name != "hierarchical"]  # it is then two_shot
        return [name for name in names if self._near is None or name in self._near]

    def _seconds(self, algorithm: str, row: Codec | None, size: int) -> tuple[str, float]:
        """Which algorithm runs, and for how long."""
        found = simulate(
            self._question.collective,
            algorithm,
            cluster=self._cluster,
            size_bytes=size,
            codec=row,
            dtype=self._dtype,
            root=self._question.root,
            chunk_bytes=self._chunk_bytes,
        )
        return found.algorithm, found.seconds

    def _priced(
        self, algorithm: str, codec: str, row: Codec | None, chunk_bytes: int = 0
    ) -> Option | None:
        if not engine.has_algorithm(self._question.collective, algorithm):
            return None
        most = self._most_bytes(chunk_bytes or self._chunk_bytes)
        try:
            runs, seconds = self._seconds(algorithm, row, min(self._bytes, most))
            if self._bytes > most:
                less = self._seconds(algorithm, row, most // 2)[1]
                slope = (seconds - less) / (most - most // 2)
                seconds += max(slope, 0.0) * (self._bytes - most)
        except errors.InvalidArgumentError:  # too many tasks to be simulated
            return None
        option = Option(algorithm, runs, codec, seconds)
        self.options.append(option)
        return option

    def _most_bytes(self, chunk_bytes: int) -> int:
        ranks = self._cluster.ranks
        if self._question.collective in ("allgather", "gather"):  # blocks are not cut
            return _GATHERED_CHUNKS * chunk_bytes
        return max(_LEAST_CHUNKS, _CHUNKS_OF_A_RANK * ranks) * chunk_bytes

    def _hopeful(self, names: list[str], row: Codec | None) -> list[str]:
        """Without those that take many times as long at a smaller size."""
        if len(names) < 3 or self._bytes <= _SKETCH_BYTES:
            return names
        seconds = {}
        for name in names:
            try:
                seconds[name] = self._seconds(name, row, _SKETCH_BYTES)[1]
            except errors.InvalidArgumentError:  # too many tasks to be simulated
                continue
        least = min(seconds.values(), default=0.0)
        return [name for name, each in seconds.items() if each <= _HOPELESS * least]


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

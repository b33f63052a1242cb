"""The ways to run one call, and what each of them takes by a profile's prices."""

from __future__ import annotations

import math
from collections import Counter

from jaxccomp import errors
from jaxccomp._native import algorithms, engine
from jaxccomp.schedules._description import Cluster, Codec
from jaxccomp.schedules._floors import least_seconds
from jaxccomp.schedules._options import RAW, Option, Question, Sizes
from jaxccomp.schedules._prices import (
    HALF_TYPES,
    Prediction,
    default_algorithm,
    simulate,
    travels_as,
)

# Of larger calls two parts are priced, and the rest goes on as from the smaller to the larger one:
# of blocks of some chunks each, so that both are as long as their bytes take.
_LEAST_CHUNKS, _CHUNKS_OF_A_RANK = 32, 2
_GATHERED_CHUNKS = 8
# What moves values in chunks, and not in a part for each rank.
_PIPELINES = {
    *(("bcast", name) for name in ("chain", "binomial")),
    *(("allreduce", name) for name in ("one_shot", "recursive_doubling")),
    *(("reduce", name) for name in ("direct", "binomial", "chain")),
    ("scan", "chain"),
    ("exscan", "chain"),
}
# The most bytes of a size that is priced quickly.
_SKETCH_BYTES = 2 << 20
# Where each rank has a part of as many bytes, one of them is simulated for all (csrc/planner/
# symmetry.h). On more ranks than a few, sizes that are so many times as large are rounded to that.
_BLOCK_ALIGN, _ROUNDABLE, _FEW_RANKS = 64, 100, 16
# Pipelines of few chunks may gain by smaller ones, those of many by larger ones.
_FEW_CHUNKS, _SMALL_CHUNK, _LARGE_CHUNK = 8, 1 << 17, 1 << 21
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


class Ways:
    """The ways to run a call.

    Args:
      question: what is to be chosen.
      cluster: the call's ranks.
      chunk_bytes: of algorithms that name no other chunk.

    Attributes:
      options: what has been priced.
      bytes: that a rank passes in.
    """

    def __init__(self, question: Question, cluster: Cluster, chunk_bytes: int):
        self.options: list[Option] = []
        self.bytes = sum(size for _, size in question.sizes)
        self._question, self._cluster, self._chunk_bytes = question, cluster, chunk_bytes
        dtypes = [name for name, _ in question.sizes]
        self._dtype = next((name for name in dtypes if name in HALF_TYPES), dtypes[0])
        self._coders = {
            codec: None if codec == RAW else _mixed(codec, cluster.codecs[codec], question.sizes)
            for codec in question.codecs
        }
        self._rules: dict[bool, str] = {}  # by whether values are coded
        # Of values of half types that travel as float32, what codes them.
        self._wide_coders: dict[str, Codec | None] = {}

    def codecs(self) -> list[str]:
        """Of those that are asked for, what codes any of the values, and "raw"."""
        return [codec for codec, row in self._coders.items() if row or codec == RAW]

    def ratio(self, codec: str) -> float:
        """What values take over what their codes take."""
        row = self._coders[codec]
        return row.ratio if row else 1.0

    def floor_seconds(self, codec: str) -> float:
        """What the bytes take on the links at least, by any algorithm."""
        return least_seconds(
            self._question.collective,
            self._cluster,
            self.bytes,
            self._question.root,
            self.ratio(codec),
        )

    def rule(self, codec: str) -> str:
        """The static rule's algorithm."""
        coded = codec != RAW
        if coded not in self._rules:
            self._rules[coded] = self._rule(coded)
        return self._rules[coded]

    def _rule(self, coded: bool) -> str:
        return default_algorithm(
            self._question.collective, self._cluster, self.bytes, coded, self._dtype
        )

    def others(self, codec: str) -> list[str]:
        """Algorithms that round and encode no more often than the static rule's, without it."""
        collective, rule = self._question.collective, self.rule(codec)
        names = [name for name in algorithms.own_names(collective) if name not in _RECODED]
        lossy = codec != RAW and not engine.load().describe_codec(codec)["lossless"]
        if collective in _MERGED_AT_ONCE and (lossy or self._dtype in HALF_TYPES):
            names = [name for name in names if name in _MERGED_AT_ONCE[collective]]
        if lossy and rule == "one_shot":
            names = []  # it encodes each value once, all others of allreduce encode sums again
        if all(host.ranks == 1 for host in self._cluster.hosts):
            names = [name for name in names if name != "hierarchical"]  # it is then two_shot
        return [name for name in names if name != rule]

    def is_pipeline(self, algorithm: str) -> bool:
        """Whether it moves all values in chunks, and not in a part for each rank."""
        return (self._question.collective, algorithm) in _PIPELINES

    def with_another_chunk(self, algorithm: str) -> str | None:
        """An algorithm with a chunk that pipelines may gain by; None for values that are short."""
        if self.bytes < 2 * _SMALL_CHUNK:
            return None
        few = self.bytes <= _FEW_CHUNKS * self._chunk_bytes
        chunk = _SMALL_CHUNK if few else _LARGE_CHUNK
        return None if chunk == self._chunk_bytes else f"{algorithm}:chunk={chunk}"

    def price(self, algorithm: str, codec: str, limit: float = math.inf) -> Option | None:
        """An option; None where it takes the limit at least, or too many tasks.

        Args:
          algorithm: as operations take it; "auto" is the static rule's.
          codec: one of `codecs`.
          limit: in seconds.
        """
        known = [e for e in self.options if (e.algorithm, e.codec) == (algorithm, codec)]
        if known:
            return known[0]
        if not algorithms.has(self._question.collective, algorithm):
            return None
        name, _, chunk = algorithm.partition(":chunk=")
        most = self._most_bytes(
            self.rule(codec) if name == "auto" else name.partition(":")[0],
            int(chunk) if chunk.isdigit() else self._chunk_bytes,
        )
        try:
            if self.bytes <= most:
                found = self._simulated(algorithm, codec, self.bytes, limit)
                seconds = found.seconds
            else:
                # As far as the whole is beyond the larger part, in units between the two.
                beyond = (self.bytes - most) / (most - most // 2)
                less = self._simulated(algorithm, codec, most // 2, limit)
                if less.ended_early:
                    return None
                of_part = (limit + less.seconds * beyond) / (1 + beyond)
                found = self._simulated(algorithm, codec, most, of_part)
                seconds = found.seconds + max(found.seconds - less.seconds, 0.0) * beyond
        except errors.InvalidArgumentError:  # too many tasks to be simulated
            return None
        if found.ended_early:
            return None
        option = Option(algorithm, found.algorithm, codec, seconds)
        self.options.append(option)
        return option

    def sketch_bytes(self) -> int:
        """A size that is priced quickly; the call's own, where that is no larger."""
        part = self._most_bytes("", self._chunk_bytes) // 2
        return min(_SKETCH_BYTES, part, self.bytes)

    def sketch(self, algorithm: str, codec: str, limit: float) -> Prediction | None:
        """The price of `sketch_bytes`; None as of `price`."""
        try:
            found = self._simulated(algorithm, codec, self.sketch_bytes(), limit)
        except errors.InvalidArgumentError:  # too many tasks to be simulated
            return None
        return None if found.ended_early else found

    def _simulated(self, algorithm: str, codec: str, size: int, limit: float) -> Prediction:
        ranks, even = self._cluster.ranks, _BLOCK_ALIGN * self._cluster.ranks
        if self._question.collective == "allreduce" and ranks > _FEW_RANKS:
            if size > _ROUNDABLE * even:
                size = -(-size // even) * even
        runs = self.rule(codec) if algorithm == "auto" else algorithm
        return simulate(
            self._question.collective,
            runs,
            cluster=self._cluster,
            size_bytes=size,
            codec=self._coder(codec, runs),
            dtype=self._dtype,
            root=self._question.root,
            chunk_bytes=self._chunk_bytes,
            limit_seconds=limit,
        )

    def _coder(self, codec: str, algorithm: str) -> Codec | None:
        row = self._coders[codec]
        collective, ranks = self._question.collective, self._cluster.ranks
        if row is None or travels_as(collective, algorithm, self._dtype, ranks) == self._dtype:
            return row
        if codec not in self._wide_coders:
            wide = Counter[str]()
            for name, size in self._question.sizes:
                wide["float32"] += size * (1 + (name in HALF_TYPES))
            described = self._cluster.codecs[codec]
            self._wide_coders[codec] = _mixed(codec, described, tuple(wide.items()))
        return self._wide_coders[codec]

    def _most_bytes(self, algorithm: str, chunk_bytes: int) -> int:
        """Of what is simulated as a whole."""
        collective, ranks = self._question.collective, self._cluster.ranks
        if collective in ("allgather", "gather"):  # blocks are not cut
            return _GATHERED_CHUNKS * chunk_bytes
        if self.is_pipeline(algorithm):
            return _LEAST_CHUNKS * chunk_bytes
        chunks = max(_LEAST_CHUNKS, _CHUNKS_OF_A_RANK * ranks)
        if algorithm == "hierarchical":  # a part for each host
            hosts = len(self._cluster.hosts)
            chunks = min(chunks, max(2 * _LEAST_CHUNKS, 2 * _CHUNKS_OF_A_RANK * hosts))
        return chunks * chunk_bytes


def _mixed(spec: str, codec: Codec, sizes: Sizes) -> Codec | None:
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

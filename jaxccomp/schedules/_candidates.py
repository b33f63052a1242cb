"""The candidates for running one call, and their predicted times."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._native import algorithms, engine
from jaxccomp.schedules._cluster import Cluster, Codec, Groups
from jaxccomp.schedules._prices import (
    HALF_TYPES,
    Prediction,
    default_algorithm,
    simulate,
    travels_as,
)

# --- Candidates, and the choice among them --------------------------------------------------------

# A candidate replaces the static rule, a smaller chunk or raw values only if its predicted time is
# lower by this fraction: smaller differences are within the prediction error.
GAIN = 0.05
RAW = "raw"  # no codec

Sizes = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Option:
    """A candidate for running a call.

    Attributes:
      algorithm: the operation's argument; "auto" is the engine's static rule.
      runs: the name of the algorithm that runs.
      codec: a spec; "raw" for none.
      seconds: the time predicted from the profile.
    """

    algorithm: str
    runs: str
    codec: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Choice:
    """The candidate chosen for a call.

    Attributes:
      chosen: the candidate that runs.
      others: the other candidates with a predicted time, the fastest first.
    """

    chosen: Option
    others: tuple[Option, ...]


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of `Planner.choose`."""

    collective: str
    algorithm: str
    codecs: tuple[str, ...]
    sizes: Sizes
    groups: Groups
    root: int


def first_of_gain(options: Sequence[Option]) -> Option | None:
    """Returns the first option, unless a later option is faster by `GAIN`."""
    best: Option | None = None
    for each in options:
        if best is None or each.seconds < (1 - GAIN) * best.seconds:
            best = each
    return best


def choice_of(chosen: Option | None, options: Iterable[Option]) -> Choice | None:
    """Returns the choice with the other predicted options; None if none was chosen."""
    if chosen is None:
        return None
    # A dict, not a set: ties must be in the same order on all ranks.
    others = [each for each in dict.fromkeys(options) if each != chosen]
    others.sort(key=lambda each: each.seconds)
    return Choice(chosen, tuple(others))


# --- Lower bounds, from the bytes on the hosts' links ---------------------------------------------

# Sizes are rounded to whole elements and blocks; the bound must stay below simulated times.
_ROUNDING = 0.999


def min_seconds(
    collective: str, cluster: Cluster, size_bytes: int, root: int = 0, ratio: float = 1.0
) -> float:
    """Returns a lower bound for the simulated time of every algorithm.

    Args:
      collective: one of `jaxccomp.schedules.COLLECTIVES`.
      cluster: the cluster; all its ranks take part.
      size_bytes: size of a rank's operand; of the root's for a scatter.
      root: of rooted collectives.
      ratio: the codec's compression ratio (raw / encoded bytes).
    """
    hosts = [each for each in cluster.hosts for _ in range(each.count)]
    ranks, last = cluster.ranks, len(hosts) - 1
    if not last:
        return cluster.call_seconds
    begins = [sum(each.ranks for each in hosts[:i]) for i in range(len(hosts) + 1)]
    of_root = next(i for i in range(len(hosts)) if root < begins[i + 1])
    size = size_bytes / ratio
    block = size_bytes // ranks / ratio
    minimum = 0.0
    for i, host in enumerate(hosts):
        own, others = host.ranks, ranks - host.ranks
        up, down = {
            # Each host sends its values, and receives the other hosts' values or a sum.
            "allgather": (own * size, others * size),
            "alltoall": (own * others * block, own * others * block),
            "reduce_scatter": (others * block, own * block),
            "allreduce": (size, size),
            "bcast": (size, 0.0) if i == of_root else (0.0, size),
            "scatter": (others * block, 0.0) if i == of_root else (0.0, own * block),
            "reduce": (0.0, size) if i == of_root else (size, 0.0),
            "gather": (0.0, others * size) if i == of_root else (own * size, 0.0),
            # A chain from host to host.
            "scan": (size * (i < last), size * (i > 0)),
            "exscan": (size * (i < last), size * (i > 0)),
        }[collective]
        minimum = max(minimum, up / host.up_bytes_per_second, down / host.down_bytes_per_second)
    if collective == "allreduce":
        # Each value takes h - 1 messages to be summed over h hosts, and h - 1 to be distributed.
        minimum = max(minimum, 2 * last * size / sum(each.up_bytes_per_second for each in hosts))
    return cluster.call_seconds + _ROUNDING * minimum


# --- Predicted times ------------------------------------------------------------------------------

# Larger calls are extrapolated linearly from two simulated sizes. Their blocks have enough chunks
# for time to grow linearly with bytes.
_MIN_CHUNKS, _CHUNKS_OF_A_RANK = 32, 2
_GATHERED_CHUNKS = 8
# Algorithms that pipeline chunks, instead of cutting values into a part per rank.
_PIPELINES = {
    *(("bcast", name) for name in ("chain", "binomial")),
    *(("allreduce", name) for name in ("one_shot", "recursive_doubling")),
    *(("reduce", name) for name in ("direct", "binomial", "chain")),
    ("scan", "chain"),
    ("exscan", "chain"),
}
# The maximum size of a coarse estimate.
_SKETCH_BYTES = 2 << 20
# If all ranks have parts of the same size, one rank is simulated for all (csrc/planner/symmetry.h).
# With more than `_FEW_RANKS` ranks, sizes above `_ROUNDABLE` blocks of `_BLOCK_ALIGN` bytes per
# rank are rounded up to equal parts.
_BLOCK_ALIGN, _ROUNDABLE, _FEW_RANKS = 64, 100, 16
# Pipelines of few chunks may gain from smaller chunks, pipelines of many from larger ones.
_FEW_CHUNKS, _SMALL_CHUNK, _LARGE_CHUNK = 8, 1 << 17, 1 << 21
# Algorithms that merge all values at once, as the static rule does. The others round or encode a
# partial sum at each rank, so they are excluded with half types and lossy codecs.
_MERGED_AT_ONCE = {
    "allreduce": ("one_shot", "two_shot", "hierarchical"),
    "reduce": ("direct",),
    "reduce_scatter": ("direct",),
    "scan": (),
    "exscan": (),
}
# Algorithms that decode and encode again at each rank.
_RECODED = ("chain_recoded",)


class Candidates:
    """The candidates for running a call.

    Args:
      request: the call.
      cluster: the call's ranks.
      chunk_bytes: the chunk of algorithms that do not set a chunk.

    Attributes:
      options: the candidates with a predicted time so far.
      bytes: size of a rank's operands.
    """

    def __init__(self, request: Request, cluster: Cluster, chunk_bytes: int):
        self.options: list[Option] = []
        self.bytes = sum(size for _, size in request.sizes)
        self._request, self._cluster, self._chunk_bytes = request, cluster, chunk_bytes
        dtypes = [name for name, _ in request.sizes]
        self._dtype = next((name for name in dtypes if name in HALF_TYPES), dtypes[0])
        self._coders = {
            codec: None if codec == RAW else _mixed(codec, cluster.codecs[codec], request.sizes)
            for codec in request.codecs
        }
        self._rules: dict[bool, str] = {}  # key: whether values are encoded
        # Codecs of half types that are sent as float32.
        self._wide_coders: dict[str, Codec | None] = {}

    def codecs(self) -> list[str]:
        """Returns "raw" and the requested codecs that encode at least one of the dtypes."""
        return [codec for codec, row in self._coders.items() if row or codec == RAW]

    def ratio(self, codec: str) -> float:
        """Returns the compression ratio (raw / encoded bytes)."""
        row = self._coders[codec]
        return row.ratio if row else 1.0

    def floor_seconds(self, codec: str) -> float:
        """Returns a lower bound for any algorithm's time, from the bytes on the links."""
        return min_seconds(
            self._request.collective,
            self._cluster,
            self.bytes,
            self._request.root,
            self.ratio(codec),
        )

    def rule(self, codec: str) -> str:
        """Returns the algorithm that the static rule selects."""
        encoded = codec != RAW
        if encoded not in self._rules:
            self._rules[encoded] = self._rule(encoded)
        return self._rules[encoded]

    def _rule(self, encoded: bool) -> str:
        return default_algorithm(
            self._request.collective, self._cluster, self.bytes, encoded, self._dtype
        )

    def others(self, codec: str) -> list[str]:
        """Returns other algorithms that round and encode no more often than the static rule's."""
        collective, rule = self._request.collective, self.rule(codec)
        names = [name for name in algorithms.own_names(collective) if name not in _RECODED]
        lossy = codec != RAW and not engine.load().describe_codec(codec)["lossless"]
        if collective in _MERGED_AT_ONCE and (lossy or self._dtype in HALF_TYPES):
            names = [name for name in names if name in _MERGED_AT_ONCE[collective]]
        if lossy and rule == "one_shot":
            names = []  # one_shot encodes each value once; all others encode sums again
        if all(host.ranks == 1 for host in self._cluster.hosts):
            names = [name for name in names if name != "hierarchical"]  # it is then two_shot
        return [name for name in names if name != rule]

    def is_pipeline(self, algorithm: str) -> bool:
        """Returns whether the algorithm is one of `_PIPELINES`."""
        return (self._request.collective, algorithm) in _PIPELINES

    def with_another_chunk(self, algorithm: str) -> str | None:
        """Returns the algorithm with a chunk that may be faster; None for short operands."""
        if self.bytes < 2 * _SMALL_CHUNK:
            return None
        few = self.bytes <= _FEW_CHUNKS * self._chunk_bytes
        chunk = _SMALL_CHUNK if few else _LARGE_CHUNK
        return None if chunk == self._chunk_bytes else f"{algorithm}:chunk={chunk}"

    def price(self, algorithm: str, codec: str, limit: float = math.inf) -> Option | None:
        """Predicts an option's time; None if it reaches the limit or has too many tasks.

        Args:
          algorithm: the operation's argument; "auto" is the static rule.
          codec: one of `codecs`.
          limit: the maximum predicted time, in seconds.
        """
        known = [e for e in self.options if (e.algorithm, e.codec) == (algorithm, codec)]
        if known:
            return known[0]
        if not algorithms.has(self._request.collective, algorithm):
            return None
        name, _, chunk = algorithm.partition(":chunk=")
        maximum = self._max_bytes(
            self.rule(codec) if name == "auto" else name.partition(":")[0],
            int(chunk) if chunk.isdigit() else self._chunk_bytes,
        )
        try:
            if self.bytes <= maximum:
                found = self._simulated(algorithm, codec, self.bytes, limit)
                seconds = found.seconds
            else:
                # Extrapolate: the distance to `maximum`, by the difference of the two sizes.
                beyond = (self.bytes - maximum) / (maximum - maximum // 2)
                less = self._simulated(algorithm, codec, maximum // 2, limit)
                if less.ended_early:
                    return None
                of_part = (limit + less.seconds * beyond) / (1 + beyond)
                found = self._simulated(algorithm, codec, maximum, of_part)
                seconds = found.seconds + max(found.seconds - less.seconds, 0.0) * beyond
        except errors.InvalidArgumentError:  # too many tasks to be simulated
            return None
        if found.ended_early:
            return None
        option = Option(algorithm, found.algorithm, codec, seconds)
        self.options.append(option)
        return option

    def sketch_bytes(self) -> int:
        """Returns the size of coarse estimates, at most the call's size."""
        part = self._max_bytes("", self._chunk_bytes) // 2
        return min(_SKETCH_BYTES, part, self.bytes)

    def sketch(self, algorithm: str, codec: str, limit: float) -> Prediction | None:
        """Predicts the time for `sketch_bytes`; None as for `price`."""
        try:
            found = self._simulated(algorithm, codec, self.sketch_bytes(), limit)
        except errors.InvalidArgumentError:  # too many tasks to be simulated
            return None
        return None if found.ended_early else found

    def _simulated(self, algorithm: str, codec: str, size: int, limit: float) -> Prediction:
        ranks, even = self._cluster.ranks, _BLOCK_ALIGN * self._cluster.ranks
        if self._request.collective == "allreduce" and ranks > _FEW_RANKS:
            if size > _ROUNDABLE * even:
                size = -(-size // even) * even
        runs = self.rule(codec) if algorithm == "auto" else algorithm
        return simulate(
            self._request.collective,
            runs,
            cluster=self._cluster,
            size_bytes=size,
            codec=self._coder(codec, runs),
            dtype=self._dtype,
            root=self._request.root,
            chunk_bytes=self._chunk_bytes,
            limit_seconds=limit,
        )

    def _coder(self, codec: str, algorithm: str) -> Codec | None:
        row = self._coders[codec]
        collective, ranks = self._request.collective, self._cluster.ranks
        if row is None or travels_as(collective, algorithm, self._dtype, ranks) == self._dtype:
            return row
        if codec not in self._wide_coders:
            wide = Counter[str]()
            for name, size in self._request.sizes:
                wide["float32"] += size * (1 + (name in HALF_TYPES))
            described = self._cluster.codecs[codec]
            self._wide_coders[codec] = _mixed(codec, described, tuple(wide.items()))
        return self._wide_coders[codec]

    def _max_bytes(self, algorithm: str, chunk_bytes: int) -> int:
        """Returns the largest size that is simulated without extrapolation."""
        collective, ranks = self._request.collective, self._cluster.ranks
        if collective in ("allgather", "gather"):  # blocks are not cut
            return _GATHERED_CHUNKS * chunk_bytes
        if self.is_pipeline(algorithm):
            return _MIN_CHUNKS * chunk_bytes
        chunks = max(_MIN_CHUNKS, _CHUNKS_OF_A_RANK * ranks)
        if algorithm == "hierarchical":  # a part for each host
            hosts = len(self._cluster.hosts)
            chunks = min(chunks, max(2 * _MIN_CHUNKS, 2 * _CHUNKS_OF_A_RANK * hosts))
        return chunks * chunk_bytes


def _mixed(spec: str, codec: Codec, sizes: Sizes) -> Codec | None:
    """Returns the codec's average over several dtypes; None if it encodes none of them."""
    encoded = set(engine.load().describe_codec(spec)["dtypes"])
    total = sum(size for _, size in sizes)
    sent = sum(size / (codec.of(name).ratio if name in encoded else 1.0) for name, size in sizes)
    rows = dict.fromkeys(("encode", "decode", "merge"), 0.0)
    for name, size in sizes:
        if name in encoded:
            row = codec.of(name)
            rows["encode"] += size / row.encode_bytes_per_second
            rows["decode"] += size / row.decode_bytes_per_second
            rows["merge"] += size / row.merge_bytes_per_second
    if not rows["encode"]:
        return None
    rates: dict[str, Any] = {
        f"{name}_bytes_per_second": total / seconds for name, seconds in rows.items()
    }
    return Codec(ratio=total / sent, max_code_bytes=codec.max_code_bytes, **rates)

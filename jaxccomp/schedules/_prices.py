"""Predicts collectives' times on a described cluster by simulating schedules (docs/planner.md)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxccomp import config, errors
from jaxccomp._native import algorithms as known
from jaxccomp._native import engine
from jaxccomp.schedules import _cluster as clusters
from jaxccomp.schedules._make import COLLECTIVES

# Collectives whose operand (at the root, for scatter) has a block per rank.
_CUT = ("alltoall", "scatter", "reduce_scatter")
_SUMS = ("allreduce", "reduce", "reduce_scatter", "reduce_scatterv", "scan", "exscan")
HALF_TYPES = ("bfloat16", "float16")
_MAX_BYTES = 1 << 50


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted time and traffic of a collective.

    Attributes:
      algorithm: the algorithm's name; for "auto", the name that the static rule selects.
      seconds: until the last rank is done.
      rank_seconds: the time at which each rank is done.
      up_bytes: for each host, the bytes sent over its link.
      down_bytes: for each host, the bytes received over its link.
      local_bytes: the bytes sent between ranks of one host, summed over hosts.
      floor_seconds: the time of the bytes on the busiest link; 0 if none is used.
      busy_seconds: CPU time, summed over ranks, by activity: "encode", "decode", "merge", "copy",
        "messages".
      busy_cores: ``busy_seconds`` as a fraction of all cores' time, 0 to 1.
      reduced: whether one host was simulated for all hosts, since all do the same.
      ended_early: whether the simulation reached the limit; ``seconds`` is then the limit, and
        bytes and CPU times are counted up to it.
    """

    algorithm: str
    seconds: float
    rank_seconds: tuple[float, ...]
    up_bytes: tuple[int, ...]
    down_bytes: tuple[int, ...]
    local_bytes: int
    floor_seconds: float
    busy_seconds: Mapping[str, float]
    busy_cores: float
    reduced: bool
    ended_early: bool = False

    @property
    def link_bytes(self) -> int:
        """Returns the bytes over the busiest link, in one direction."""
        return max(*self.up_bytes, *self.down_bytes)


def algorithms(collective: str) -> tuple[str, ...]:
    """Returns the names of a collective's algorithms: the engine's, then the registered ones."""
    _check_collective(collective)
    engine.load()  # raises if there is no engine
    return known.names(collective)


def simulate(
    collective: str,
    algorithm: str = "auto",
    *,
    cluster: Any,
    size_bytes: int,
    codec: str | Mapping[str, Any] | clusters.Codec | None = None,
    dtype: str = "float32",
    root: int = 0,
    chunk_bytes: int | None = None,
    every_rank: bool = False,
    limit_seconds: float = math.inf,
) -> Prediction:
    """Runs the schedules of all ranks on a described cluster, event by event.

    Args:
      collective: one of `jaxccomp.schedules.COLLECTIVES`.
      algorithm: as in operations, such as "ring" or "two_shot:chunk=65536"; also a registered one
        (`jaxccomp.register_algorithm`).
      cluster: a JSON file, its content as a dict, or a text such as "4x1gbit" (docs/planner.md).
      size_bytes: size of each rank's operand; of the root's for a scatter.
      codec: one of the cluster's codecs, or its ratio and rates as a dict; None or "raw": no codec.
      dtype: the values' dtype. Algorithms that send partial sums send half types as float32.
      root: the root of a rooted collective.
      chunk_bytes: default: the option of that name.
      every_rank: whether to simulate every rank even if all hosts do the same, for comparison.
      limit_seconds: the simulated time at which the simulation ends.

    Raises:
      InvalidArgumentError: for invalid arguments, or a call that is too large to simulate.
      UnknownNameError: for names that do not exist.
      ScheduleError: if a registered algorithm's schedules are wrong.
      EngineUnavailableError: without the native engine.

    Example:
      >>> made = jaxccomp.schedules.simulate(
      ...     "bcast", "chain", cluster="4x1gbit", size_bytes=64 << 20
      ... )
      >>> made.algorithm, made.link_bytes, made.seconds < 1.1 * made.floor_seconds
      ('chain', 67108864, True)
    """
    _check_collective(collective)
    described = clusters.load(cluster)
    ranks = described.ranks
    for name, value, first, end in (
        ("size_bytes", size_bytes, 0, _MAX_BYTES),
        ("root", root, 0, ranks),
        ("chunk_bytes", chunk_bytes or 64, 64, _MAX_BYTES),
    ):
        if not first <= value < end:
            raise errors.InvalidArgumentError(f"{name} must be in {first}..{end - 1}, not {value}.")
    algorithm, sent_as = _resolved(collective, algorithm, described, size_bytes, codec, dtype)
    if sent_as != dtype:
        size_bytes, dtype = 2 * size_bytes, sent_as
    row = _codec(codec, described, dtype)
    problem = known.Problem(
        ranks,
        block_bytes(collective, size_bytes, ranks),
        root=root,
        chunk_bytes=chunk_bytes,
        encoded=row is not None,
    )
    algorithm = known.for_engine(collective, algorithm, problem)
    try:
        found = engine.load().price(
            collective,
            algorithm,
            problem.block_bytes,
            chunk_bytes or config.get("chunk_bytes"),
            root,
            dtype in HALF_TYPES,
            described.described(),
            row,
            every_rank,
            limit_seconds,
        )
    except ValueError as error:
        raise errors.InvalidArgumentError(str(error)) from None
    return _prediction(found, described)


def travels_as(collective: str, algorithm: str, dtype: str, ranks: int) -> str:
    """Returns the wire dtype of values of ``dtype`` (`_primitives/wide_sums.py`)."""
    if collective not in _SUMS or dtype not in HALF_TYPES or ranks <= 2:
        return dtype
    return "float32" if known.sends_partial(collective, algorithm) else dtype


def default_algorithm(
    collective: str, cluster: clusters.Cluster, size_bytes: int, encoded: bool, dtype: str
) -> str:
    """Returns the algorithm that the static rule selects on a cluster."""
    hosts = cluster.host_of_rank
    size = block_bytes(collective, size_bytes, len(hosts))
    return engine.load().default_algorithm(collective, hosts, size, encoded, dtype in HALF_TYPES)


def _resolved(
    collective: str,
    algorithm: str,
    cluster: clusters.Cluster,
    size_bytes: int,
    codec: Any,
    dtype: str,
) -> tuple[str, str]:
    """Returns the algorithm and its wire dtype; "auto" only if the wire dtype is ``dtype``."""
    if collective not in _SUMS or dtype not in HALF_TYPES:
        return algorithm, dtype
    name, colon, options = algorithm.partition(":")
    if name == "auto":
        encoded = codec not in (None, "raw")
        name = default_algorithm(collective, cluster, size_bytes, encoded, dtype)
    sent_as = travels_as(collective, name, dtype, cluster.ranks)
    return (algorithm, dtype) if sent_as == dtype else (name + colon + options, sent_as)


def simulate_all(collective: str, **options: Any) -> tuple[list[Prediction], dict[str, str]]:
    """Calls `simulate` with each algorithm of a collective.

    Returns:
      The predictions, the fastest first, and the reasons why other algorithms were not simulated.
    """
    made, missing = [], {}
    for name in algorithms(collective):
        try:
            made.append(simulate(collective, name, **options))
        except errors.UnknownNameError:
            raise
        except errors.InvalidArgumentError as error:
            missing[name] = str(error)
    if not made and missing:
        raise errors.InvalidArgumentError(next(iter(missing.values())))
    return sorted(made, key=lambda each: each.seconds), missing


def block_bytes(collective: str, size_bytes: int, ranks: int) -> int:
    """Returns the size of a block, from the size of a rank's operand."""
    return size_bytes // ranks if collective in _CUT else size_bytes


def static_rule(
    collective: str,
    groups: Sequence[Sequence[int]],
    sizes: Sequence[tuple[str, int]],
    codec: str = "raw",
) -> str:
    """Returns the algorithm that "auto" selects without a profile.

    Args:
      collective: its name; v-variants are allowed, too.
      groups: for each group of ranks that makes the call, a host number for each rank.
      sizes: bytes of a rank's operands, by dtype.
      codec: a spec; "raw" for none.

    Returns:
      The algorithm's name; "auto" if groups have different algorithms.

    Example:
      >>> jaxccomp.schedules.static_rule("bcast", [[0, 0, 1]], [("float32", 1 << 20)])
      'chain'
    """
    core = engine.load()
    dtypes = {name for name, _ in sizes}
    encoded = codec != "raw" and bool(dtypes.intersection(core.describe_codec(codec)["dtypes"]))
    wide = collective in _SUMS and bool(dtypes.intersection(HALF_TYPES))
    size = sum(each for _, each in sizes)
    names = {
        core.default_algorithm(
            collective,
            list(hosts),
            block_bytes(collective, size, len(hosts)),
            encoded,
            wide,
        )
        for hosts in groups
    }
    return names.pop() if len(names) == 1 else "auto"


def with_chunk(algorithm: str) -> str:
    """Adds the option `chunk_bytes` to an algorithm that sets no chunk.

    Example:
      >>> jaxccomp.schedules.with_chunk("ring")
      'ring:chunk=524288'
    """
    name, _, options = algorithm.partition(":")
    given = [each for each in options.split(",") if each]
    if not any(each.startswith("chunk=") for each in given):
        given.append(f"chunk={config.get('chunk_bytes')}")
    return f"{name}:{','.join(given)}"


def _check_collective(collective: str) -> None:
    if collective not in COLLECTIVES:
        raise errors.unknown("collective with blocks of one size:", collective, COLLECTIVES)


def _codec(
    given: str | Mapping[str, Any] | clusters.Codec | None, cluster: clusters.Cluster, dtype: str
) -> tuple | None:
    if given is None or given == "raw":
        return None
    if isinstance(given, clusters.Codec):
        return given.of(dtype).row()
    if isinstance(given, Mapping):
        return clusters.codec(given, "the codec").of(dtype).row()
    if given not in cluster.codecs:
        raise errors.unknown(
            "codec of the cluster:",
            given,
            ("raw", *cluster.codecs),
            "its ratio and rates are part of a profile (docs/planner.md)",
        )
    return cluster.codecs[given].of(dtype).row()


def _prediction(found: Mapping[str, Any], cluster: clusters.Cluster) -> Prediction:
    seconds = max(found["rank_seconds"])
    rates = [
        (each.up_bytes_per_second, each.down_bytes_per_second)
        for each in cluster.hosts
        for _ in range(each.count)
    ]
    floor = max(
        max(up / rate[0], down / rate[1])
        for up, down, rate in zip(found["up_bytes"], found["down_bytes"], rates, strict=True)
    )
    cores = cluster.hosts[0].cores
    if not cluster.one_machine:
        cores = sum(each.count * each.cores for each in cluster.hosts)
    return Prediction(
        algorithm=found["algorithm"],
        seconds=seconds,
        rank_seconds=tuple(found["rank_seconds"]),
        up_bytes=tuple(found["up_bytes"]),
        down_bytes=tuple(found["down_bytes"]),
        local_bytes=found["local_bytes"],
        floor_seconds=floor,
        busy_seconds=found["busy"],
        busy_cores=sum(found["busy"].values()) / (cores * seconds) if seconds else 0.0,
        reduced=found["reduced"],
        ended_early=found["ended_early"],
    )

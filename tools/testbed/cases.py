"""The scenarios of a comparison: each has a testbed and a table of cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation of this package with its options.

    Attributes:
      op: the operation.
      values: its input, one of ``inputs.KINDS``.
      codec: codec spec.
      algorithm: name of an algorithm, or "auto".
      transport: "mpi" or "ucx".
    """

    op: str
    values: str
    codec: str = "raw"
    algorithm: str = "auto"
    transport: str = "mpi"


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A testbed and the cases that run on it.

    Attributes:
      about: a description for the help text.
      hosts: number of hosts.
      link: the rate of each host's link.
      cases: cases of this package.
      peers: whether the MPI libraries' own collectives run, too.
    """

    about: str
    hosts: int
    link: str
    cases: tuple[Case, ...]
    peers: bool = True


# The algorithms to compare, by operation.
ALGORITHMS = {
    "bcast": ("chain", "chain_recoded", "binomial", "scatter_allgather"),
    "allreduce": (
        "ring",
        "two_shot",
        "one_shot",
        "recursive_doubling",
        "parameter_server",
        "hierarchical",
    ),
    "reduce_scatter": ("direct", "ring"),
    "allgather": ("direct", "ring", "bruck"),
    "alltoall": ("pairwise", "bruck"),
}
_SUMS = {"allreduce": "bf16|lossless", "reduce_scatter": "bf16|lossless"}


def _every_algorithm() -> Iterator[Case]:
    for op, names in ALGORITHMS.items():
        for name in names:
            for codec in ("raw", _SUMS.get(op, "lossless")):
                yield Case(op, "float32" if op in _SUMS else "bfloat16", codec, name)


_COLLECTIVES = (
    Case("bcast", "bfloat16", "raw", "chain"),
    Case("bcast", "bfloat16", "lossless", "chain"),
    Case("bcast", "float32", "bf16", "chain"),
    Case("bcast", "float32", "int8", "chain"),
    Case("bcast", "float32", "zfp", "chain"),
    Case("bcast", "update", "lossless", "chain"),
    Case("bcast", "update", "delta", "chain"),
    Case("allreduce", "float32", "raw", "ring"),
    Case("allreduce", "float32", "raw", "two_shot"),
    Case("allreduce", "float32", "bf16|lossless", "two_shot"),
    Case("allreduce", "float32", "int8", "two_shot"),
    Case("allreduce", "float32", "int8:block=256", "two_shot"),
    Case("allreduce", "float32", "int4", "two_shot"),
    Case("allreduce", "float32", "int4:block=256", "two_shot"),
    Case("alltoall", "bfloat16", "raw"),
    Case("alltoall", "bfloat16", "lossless"),
    Case("allgather", "bfloat16", "raw"),
    Case("allgather", "bfloat16", "lossless"),
    Case("reduce_scatter", "bfloat16", "raw"),
    Case("reduce_scatter", "bfloat16", "lossless"),
)

SCENARIOS = {
    "collectives": Scenario(
        "operations and codecs, compared with the MPIs' own operations",
        hosts=4,
        link="1gbit",
        cases=_COLLECTIVES,
    ),
    "transports": Scenario(
        "the same operations and codecs, over MPI and over UCX",
        hosts=4,
        link="1gbit",
        cases=tuple(
            dataclasses.replace(case, transport=transport)
            for case in _COLLECTIVES
            for transport in ("mpi", "ucx")
        ),
        peers=False,
    ),
    "updates": Scenario(
        "weights of which few have changed; all ranks hold the previous weights",
        hosts=4,
        link="1gbit",
        cases=(
            Case("bcast", "update", "delta", "chain"),
            Case("bcast", "update", "lossless", "chain"),
            Case("bcast", "update", "index_value_zstd", "chain"),
        ),
    ),
    "algorithms": Scenario(
        "every algorithm, compared with the time of its bytes on the wire",
        hosts=4,
        link="1gbit",
        cases=tuple(_every_algorithm()),
        peers=False,
    ),
    "hops": Scenario(
        "values encoded once, compared with values encoded again at every hop",
        hosts=8,
        link="1gbit",
        cases=tuple(
            Case("bcast", values, codec, algorithm)
            for values, codec in (
                ("bfloat16", "lossless"),
                ("bfloat16", "zstd"),
                ("bfloat16", "zstd:level=9"),
                ("float32", "int8"),
                ("float32", "zfp"),
                ("float32", "zfp:rate=16"),
            )
            for algorithm in ("chain", "chain_recoded")
        ),
        peers=False,
    ),
    "fast": Scenario(
        "a fast link, on which coding may be the bottleneck",
        hosts=2,
        link="5gbit",
        cases=(
            Case("bcast", "bfloat16", "raw", "chain"),
            Case("bcast", "bfloat16", "lossless", "chain"),
        ),
    ),
}

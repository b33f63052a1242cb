"""What a collective takes at least, by any algorithm: what its bytes take on the links of hosts."""

from __future__ import annotations

from jaxccomp.schedules._description import Cluster

# Sizes are rounded to whole elements and blocks; a bound must stay below what is simulated.
_ROUNDING = 0.999


def least_seconds(
    collective: str, cluster: Cluster, size_bytes: int, root: int = 0, ratio: float = 1.0
) -> float:
    """A lower bound for the price of every algorithm.

    Args:
      collective: one of `jaxccomp.schedules.COLLECTIVES`.
      cluster: whose ranks take part.
      size_bytes: what a rank passes in; what the root passes in for a scatter.
      root: of rooted collectives.
      ratio: of the codec: bytes of values to bytes of their code.
    """
    hosts = [each for each in cluster.hosts for _ in range(each.count)]
    ranks, last = cluster.ranks, len(hosts) - 1
    if not last:
        return cluster.call_seconds
    begins = [sum(each.ranks for each in hosts[:i]) for i in range(len(hosts) + 1)]
    of_root = next(i for i in range(len(hosts)) if root < begins[i + 1])
    size = size_bytes / ratio
    block = size_bytes // ranks / ratio
    least = 0.0
    for i, host in enumerate(hosts):
        own, others = host.ranks, ranks - host.ranks
        up, down = {
            # Each host's values leave it, and those of all others, or a sum of them, come.
            "allgather": (own * size, others * size),
            "alltoall": (own * others * block, own * others * block),
            "reduce_scatter": (others * block, own * block),
            "allreduce": (size, size),
            "bcast": (size, 0.0) if i == of_root else (0.0, size),
            "scatter": (others * block, 0.0) if i == of_root else (0.0, own * block),
            "reduce": (0.0, size) if i == of_root else (size, 0.0),
            "gather": (0.0, others * size) if i == of_root else (own * size, 0.0),
            # From host to host.
            "scan": (size * (i < last), size * (i > 0)),
            "exscan": (size * (i < last), size * (i > 0)),
        }[collective]
        least = max(least, up / host.up_bytes_per_second, down / host.down_bytes_per_second)
    if collective == "allreduce":
        # A sum of h hosts takes h - 1 messages of each value, and its way to all as many.
        least = max(least, 2 * last * size / sum(each.up_bytes_per_second for each in hosts))
    return cluster.call_seconds + _ROUNDING * least

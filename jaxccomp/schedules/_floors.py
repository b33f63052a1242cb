"""Lower bounds for a collective's time with any algorithm, from its bytes on the hosts' links."""

from __future__ import annotations

from jaxccomp.schedules._description import Cluster

# Sizes are rounded to whole elements and blocks; the bound must stay below simulated times.
_ROUNDING = 0.999


def least_seconds(
    collective: str, cluster: Cluster, size_bytes: int, root: int = 0, ratio: float = 1.0
) -> float:
    """A lower bound for the simulated time of every algorithm.

    Args:
      collective: one of `jaxccomp.schedules.COLLECTIVES`.
      cluster: the cluster, all of whose ranks take part.
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
    least = 0.0
    for i, host in enumerate(hosts):
        own, others = host.ranks, ranks - host.ranks
        up, down = {
            # Each host sends its values, and receives all others' values or a sum of them.
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
        # Summing over h hosts takes h - 1 messages per value, and distributing the sum as many.
        least = max(least, 2 * last * size / sum(each.up_bytes_per_second for each in hosts))
    return cluster.call_seconds + _ROUNDING * least

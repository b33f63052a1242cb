"""Which ranks of a call share a host, and their share of its links and cores."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence

from jaxccomp.schedules._description import Cluster, Hosts

# The processes of the ranks, for each group of ranks that makes the call.
Groups = tuple[tuple[int, ...], ...]


class Layout:
    """The hosts of a profile, and the processes on them.

    Args:
      cluster: the profile.
      hosts: by process of the world, a number for its host.
    """

    def __init__(self, cluster: Cluster, hosts: Sequence[int]):
        self._cluster = cluster
        described = [each for each in cluster.hosts for _ in range(each.count)]
        self._hosts = list(hosts)
        self._described = dict(zip(dict.fromkeys(hosts), described, strict=True))

    def cluster(self, groups: Groups) -> Cluster | None:
        """The ranks of the first group, as a cluster of their own.

        Links and cores are shared with the other groups, which make the call at the same time.

        Returns:
          None if ranks are not numbered host by host, or groups differ in their placement on hosts.
        """
        shapes = {self._shape(group) for group in groups}
        if len(shapes) != 1:
            return None
        (shape,) = shapes
        if shape is None:
            return None
        ranks_per_process, counts = shape
        everybody = Counter(self._hosts[process] for group in groups for process in group)
        hosts = list(dict.fromkeys(self._hosts[process] for process in groups[0]))
        parts = [count / everybody[host] for host, count in zip(hosts, counts, strict=True)]
        if self._cluster.one_machine:
            parts = [sum(counts) / everybody.total()] * len(parts)
        made = [
            self._part(host, count, part, count / everybody[host])
            for host, count, part in zip(hosts, counts, parts, strict=True)
        ]
        return dataclasses.replace(
            self._cluster, hosts=tuple(made), ranks_per_process=ranks_per_process
        )

    def _part(self, host: int, ranks: int, cores: float, links: float) -> Hosts:
        whole = self._described[host]
        return Hosts(
            count=1,
            ranks=ranks,
            cores=max(round(whole.cores * cores), 1),
            up_bytes_per_second=max(whole.up_bytes_per_second * links, 1.0),
            down_bytes_per_second=max(whole.down_bytes_per_second * links, 1.0),
        )

    def _shape(self, group: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
        """Ranks per process, and ranks of each host in order; None if not numbered host by host."""
        processes = [(each, len(list(run))) for each, run in itertools.groupby(group)]
        hosts = [
            (host, len(list(run)))
            for host, run in itertools.groupby(self._hosts[process] for process in group)
        ]
        lengths = {length for _, length in processes}
        apart = len(dict(processes)) < len(processes) or len(dict(hosts)) < len(hosts)
        if apart or len(lengths) != 1:
            return None
        return lengths.pop(), tuple(length for _, length in hosts)

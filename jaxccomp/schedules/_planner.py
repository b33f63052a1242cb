"""Chooses algorithms and codecs by prices, from a profile that all ranks share (docs/planner.md).

A choice depends on the call, the profile, and who shares a host; so all ranks come to the same one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from jaxccomp import config
from jaxccomp.schedules import _by_price
from jaxccomp.schedules._description import Cluster
from jaxccomp.schedules._layout import Groups, Layout
from jaxccomp.schedules._make import COLLECTIVES
from jaxccomp.schedules._options import RAW, Choice, Question, Sizes
from jaxccomp.schedules._ways import Ways

# What more ranks take to be priced is felt.
_MOST_RANKS = 64
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
        """What carried values when the profile was measured; empty where it does not say."""
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
        question = Question(collective, algorithm, codecs, sizes, groups, root)
        return self._remembered(question, config.get("chunk_bytes"), every_option)

    def _choose(self, question: Question, chunk_bytes: int, every_option: bool) -> Choice | None:
        known = set(self._cluster.codecs) | {RAW}
        if question.collective not in COLLECTIVES or not set(question.codecs) <= known:
            return None
        cluster = self._layout.cluster(question.groups)
        if cluster is None or not 1 < cluster.ranks <= _MOST_RANKS:
            return None
        if sum(size for _, size in question.sizes) == 0:
            return None
        return _by_price.choose(question, Ways(question, cluster, chunk_bytes), every_option)

"""Chooses algorithms and codecs by predicted time, from a profile (docs/planner.md).

A choice depends only on the call, the profile and the placement of ranks on hosts, which all ranks
share: all ranks make the same choice.
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

# Simulating more ranks noticeably slows compilation.
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
        """The transport with which the profile was measured; empty if it does not say."""
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
        """Chooses how to run a call; None: by the static rule.

        The static rule holds for calls without a prediction: other collectives, no bytes, a codec
        that is not in the profile, more than 64 ranks, or ranks that are not numbered host by host.

        Args:
          collective: its name.
          algorithm: "auto", or the program's argument.
          codecs: candidate specs, in the order of preference.
          sizes: bytes that a rank passes in, by dtype.
          groups: the processes of the ranks, for each group that makes the call at the same time.
          root: of rooted collectives.
          every_option: also prices candidates that cannot win; takes up to a second for 64 ranks.
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

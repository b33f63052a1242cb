"""What has been measured so far, kept so that a measurement that was ended goes on.

The first rank keeps it, and all ranks go by what it has: they measure the same next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._native import json_files
from jaxccomp.bench.team import Team

VERSION = 1
# Of what is kept; a case has some hundred bytes.
MOST_BYTES = 1 << 20


class Progress:
    """The results of steps by name.

    Args:
      team: who measures.
      setup: what results depend on; those of another setup are not gone on with.
      kept: what the first rank has kept of a measurement that has not ended; empty for none, and
        on other ranks.
      keep: what the first rank keeps bytes with, after each step; None where nothing is kept.
      tell: is told what goes on.
    """

    def __init__(
        self,
        team: Team,
        setup: Mapping[str, Any],
        kept: bytes = b"",
        keep: Callable[[bytes], None] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ):
        self._first = team.rank == 0
        self._setup = json.loads(json.dumps(setup))  # as it is read
        self._keep, self._tell = keep, tell
        steps, why = self._read(kept) if self._first else ({}, "")
        if why:
            tell(f"what was measured before is not gone on with: {why}")
        self._steps: dict[str, Any] = json.loads(team.from_first(json.dumps(steps).encode()))

    def has(self, name: str) -> bool:
        """Whether a step's results are kept."""
        known = self._steps.get(name)
        return isinstance(known, list) and all(
            isinstance(each, float) and 0 < each < math.inf for each in known
        )

    def step(self, name: str, count: int, measure: Callable[[], Sequence[float]]) -> list[float]:
        """A step's results: those that are kept, or else measured now.

        Args:
          name: of the step.
          count: how many numbers it has, all of them positive.
          measure: gives them, the same on all ranks.
        """
        known = self._steps.get(name)
        if self.has(name) and len(known) == count:
            self._tell(f"{name}: measured before")
            return known
        self._tell(name)
        found = [float(each) for each in measure()]
        self._steps[name] = found
        if self._first and self._keep is not None:
            content = {"unfinished": VERSION, "setup": self._setup, "steps": self._steps}
            self._keep(json.dumps(content, indent=1).encode() + b"\n")
        return found

    def _read(self, kept: bytes) -> tuple[dict[str, Any], str]:
        """The steps that were kept, and why there are none."""
        if not kept:
            return {}, ""
        try:
            content = json_files.loads(kept, "it") if len(kept) <= MOST_BYTES else None
        except errors.InvalidArgumentError:
            content = None
        known = isinstance(content, dict) and content.get("unfinished") == VERSION
        if not known or not isinstance(content.get("steps"), dict):
            return {}, "the file is damaged, or of another release"
        if content.get("setup") != self._setup:
            return {}, "it was measured on other ranks, hosts or tensors, or by another release"
        return content["steps"], ""

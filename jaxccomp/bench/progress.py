"""Checkpoints of a measurement, so that an interrupted one can be resumed.

Rank 0 stores the results and broadcasts them at the start, so that all ranks measure the same next.
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
# The largest checkpoint; a case has a few hundred bytes.
MOST_BYTES = 1 << 20


class Progress:
    """The results of steps by name.

    Args:
      team: the ranks.
      setup: everything that results depend on; a checkpoint of another setup is not resumed.
      kept: rank 0's checkpoint of an unfinished measurement; empty for none, and on other ranks.
      keep: called by rank 0 with a new checkpoint after each step; None: no checkpoints.
      tell: called with progress messages.
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
        self._setup = json.loads(json.dumps(setup))  # with JSON's types, for the comparison
        self._keep, self._tell = keep, tell
        steps, why = self._read(kept) if self._first else ({}, "")
        if why:
            tell(f"earlier measurements cannot be continued: {why}")
        self._steps: dict[str, Any] = json.loads(team.from_first(json.dumps(steps).encode()))

    def has(self, name: str) -> bool:
        """Whether the checkpoint has valid results of a step."""
        known = self._steps.get(name)
        return isinstance(known, list) and all(
            isinstance(each, float) and 0 < each < math.inf for each in known
        )

    def step(self, name: str, count: int, measure: Callable[[], Sequence[float]]) -> list[float]:
        """A step's results, from the checkpoint or measured now.

        Args:
          name: the step's name.
          count: the number of results, all positive.
          measure: returns the results, the same on all ranks.
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
        """The steps of a checkpoint, or why it cannot be resumed."""
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

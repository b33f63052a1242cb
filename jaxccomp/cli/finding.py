"""One thing that `doctor` looked for."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found, or why not.

    Attributes:
      name: what was looked for.
      state: "ok"; "missing" where something that could work does not; "none" where this machine has
        no use for it.
      detail: versions and places, or the reason.
      remedy: what to do about it; empty where nothing is to be done.
    """

    name: str
    state: str
    detail: str
    remedy: str = ""

    def lines(self, width: int) -> Iterator[str]:
        """For a terminal that is ``width`` characters wide."""
        text = self.detail + (f" -> {self.remedy}" if self.remedy else "")
        yield from textwrap.wrap(
            text,
            max(width, 60),
            initial_indent=f"{self.state:8}{self.name:14}",
            subsequent_indent=" " * 22,
            break_long_words=False,
            break_on_hyphens=False,
        )

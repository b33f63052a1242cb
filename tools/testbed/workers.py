"""What the ranks of a comparison tell the program that has started them: a line of JSON each."""

from __future__ import annotations

import json
import sys
from typing import Any

_MARK = "testbed: "


def say(found: dict[str, Any]) -> None:
    """Prints a line that `said` finds among what others print."""
    sys.stdout.write(f"{_MARK}{json.dumps(found)}\n")
    sys.stdout.flush()


def said(text: str, ranks: int) -> list[dict[str, Any]] | None:
    """What each rank said, in any order; None unless all did."""
    decoder, found = json.JSONDecoder(), []
    for part in text.split(_MARK)[1:]:  # lines of several ranks may have become one
        found.append(decoder.raw_decode(part)[0])
    return found if len(found) == ranks else None


def lines(text: str) -> list[dict[str, Any]]:
    """What one process said, in its order; what it did not end is left out."""
    found = []
    for part in text.split(_MARK)[1:]:
        try:
            found.append(json.JSONDecoder().raw_decode(part)[0])
        except json.JSONDecodeError:
            continue
    return found

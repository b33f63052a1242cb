"""What a rank says of each operation of each run: a line of JSON in a file of its own."""

from __future__ import annotations

import json
import os
import pathlib
import threading
from typing import Any

FOLDER = "JAXCCOMP_FAULTS_FOLDER"
_lock = threading.Lock()


def write(rank: int, **facts: Any) -> None:
    """Adds a line; a process that dies right afterwards has written it."""
    path = pathlib.Path(os.environ[FOLDER]) / f"rank-{rank}.jsonl"
    with _lock, path.open("a") as file:
        file.write(json.dumps({"rank": rank} | facts) + "\n")


def read(folder: pathlib.Path) -> list[dict[str, Any]]:
    """All lines of all ranks."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("rank-*.jsonl"))
        for line in path.read_text().splitlines()
        if line.endswith("}")
    ]

"""Records of a rank: one line of JSON for each operation of each run, in a file per rank."""

from __future__ import annotations

import json
import os
import pathlib
import threading
from typing import Any

FOLDER = "JAXCCOMP_FAULTS_FOLDER"
_lock = threading.Lock()


def write(rank: int, **facts: Any) -> None:
    """Appends a line. It is written even if the process dies immediately afterwards."""
    path = pathlib.Path(os.environ[FOLDER]) / f"rank-{rank}.jsonl"
    with _lock, path.open("a") as file:
        file.write(json.dumps({"rank": rank} | facts) + "\n")


def read(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns all lines of all ranks."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("rank-*.jsonl"))
        for line in path.read_text().splitlines()
        if line.endswith("}")
    ]

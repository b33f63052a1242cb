"""Common parts of the workers: the command line and the timed loop."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

from testbed.training import data
from testbed.training.ways import Way


def arguments(description: str) -> argparse.Namespace:
    """Parses a worker's command line; ``way`` becomes a `Way`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("way", type=lambda text: Way(**json.loads(text)))
    parser.add_argument("--task", choices=data.TASKS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmups", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--loss", action="store_true", help="report the final loss on held-out data"
    )
    return parser.parse_args()


def timed(
    given: argparse.Namespace, step: Callable[[Any, Any], None], batches: Any
) -> dict[str, Any]:
    """Seconds of each step after the warm-up, and this process's mean CPU seconds per step."""
    seconds = []
    # Make all batches first: if one rank made a batch slowly, all ranks would wait.
    ready = list(itertools.islice(batches, given.warmups + given.steps))
    processor = 0.0
    for number, (x, y) in enumerate(ready):
        if number == given.warmups:
            processor = time.process_time()
        begun = time.perf_counter()
        step(x, y)
        if number >= given.warmups:
            seconds.append(time.perf_counter() - begun)
    return {"seconds": seconds, "processor": (time.process_time() - processor) / given.steps}

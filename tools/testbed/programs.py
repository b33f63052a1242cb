"""Trains the repository's examples that exchange values inside a step, as workers of a testbed."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from testbed import workers

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"

# Compute on one thread per rank: all hosts share the machine's cores.
ENVIRONMENT = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


@dataclasses.dataclass(frozen=True)
class Program:
    """An example, larger than by default: it exchanges some megabytes a step.

    Attributes:
      options: its command line.
      on_meshes: whether it also runs along mesh axes, which ``backend="xla"`` needs.
    """

    options: tuple[str, ...]
    on_meshes: bool = False


PROGRAMS = {
    "moe_alltoall": Program(
        ("--features", "256", "--width", "512", "--batch", "32"),
    ),
    "dlrm": Program(
        ("--features", "64", "--tables", "26", "--batch", "128", "--width", "512"),
    ),
    "tensor_pipeline": Program(
        ("--features", "256", "--width", "1024", "--batch", "8", "--steps", "10"),
        on_meshes=True,
    ),
}


def work(name: str, codec: str | None, epochs: int, *, on_mesh: bool = False) -> None:
    """Trains on one rank; reports seconds and bytes sent per step, last loss, number of steps.

    Args:
      name: name of the program.
      codec: the codec of all its exchanges.
      epochs: number of epochs; the first, which compiles, is not timed.
      on_mesh: communicate along axes of all devices instead of between processes.
    """
    import jaxccomp as jcc

    training, steps = _training(name, codec, on_mesh)
    float(next(training)["loss"])  # wait for the end of the first epoch, which is not timed
    before = jcc.stats.get().total
    seconds = []
    loss = float("nan")
    for _ in range(1, epochs):
        begun = time.perf_counter()
        loss = float(next(training)["loss"])
        seconds.append((time.perf_counter() - begun) / steps)
    sent = jcc.stats.get().total.remote_bytes - before.remote_bytes
    found = {"seconds": seconds, "sent": sent / len(seconds) / steps, "loss": loss}
    workers.say(found | {"steps": epochs * steps})


def _training(name: str, codec: str | None, on_mesh: bool) -> tuple[Iterator[dict[str, Any]], int]:
    import jaxccomp as jcc

    sys.path.insert(0, str(EXAMPLES))
    example = importlib.import_module(name)
    world = jcc.init()
    options = example.parser().parse_args(PROGRAMS[name].options)
    data = example.load(world, options)
    train = example.train_on_mesh if on_mesh else example.train
    return train(world, data, options, codec), len(data[0][0])

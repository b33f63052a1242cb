"""Common parts of the training examples: scikit-learn's digits, options, and the table printed."""

import argparse
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxccomp as jcc
from jaxccomp import stats
from jaxccomp.launch import report_throughput

Results = Iterator[dict[str, Any]]  # after every epoch
Train = Callable[[jcc.Communicator, Any, int, dict[str, Any]], Results]


def parser(program: str, codec: str) -> argparse.ArgumentParser:
    """A parser with the options of all examples; ``codec`` is the default of ``--codec``."""
    options = argparse.ArgumentParser(description=program.splitlines()[0])
    options.add_argument("--codec", default=codec, help="of the second run (%(default)s)")
    options.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    options.add_argument("--batch", type=int, default=16, help="images per rank (%(default)s)")
    options.add_argument("--width", type=int, default=128, help="hidden units (%(default)s)")
    return options


def data_parallel(program: str, train: Train) -> None:
    """The main function of an example that trains without compression and with it.

    Args:
      program: the example's docstring.
      train: called as ``train(world, data, width, how)``; returns an iterator for `compare`.
        ``how`` are arguments of `jaxccomp.optim.allreduce_gradients`.
    """
    arguments = parser(program, codec="int8")
    arguments.add_argument("--no-error-feedback", action="store_true")
    arguments.add_argument("--algorithm", default="auto", help="of the second run (%(default)s)")
    arguments.add_argument(
        "--throughput",
        action="store_true",
        help="train only once, with the codec, and tell `jaxccomp tune` the images per second",
    )
    options = arguments.parse_args()
    how = {
        "codec": options.codec,
        "error_feedback": not options.no_error_feedback,
        "algorithm": options.algorithm,
    }
    world = jcc.init()
    data = load(world, options.batch)
    if options.throughput:
        throughput(options.epochs, data, train(world, data, options.width, how))
        return
    programs = {
        "uncompressed": lambda: train(world, data, options.width, {}),
        options.codec: lambda: train(world, data, options.width, how),
    }
    compare(world, options.epochs, programs)


def load(world: jcc.Communicator, batch: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """This rank's share of the images, for training and for the test.

    Returns:
      ``(images, labels)`` of shapes (batches, batch, 8, 8, 1) and (batches, batch) for training,
      and of (count, 8, 8, 1) and (count,) for the test. The counts are equal on all ranks, since
      all take part in each collective.
    """
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    split = train_test_split(images, labels.astype(np.int32), test_size=0.2, random_state=0)
    images, test_images, labels, test_labels = split
    count = len(images) // (world.size * batch)
    tests = len(test_images) // world.size
    train = [
        part[world.rank :: world.size][: count * batch].reshape(count, batch, *part.shape[1:])
        for part in (images, labels)
    ]
    test = [part[world.rank :: world.size][:tests] for part in (test_images, test_labels)]
    return train, test


def throughput(epochs: int, data: Any, program: Results) -> None:
    """Trains with ``program``, and reports this rank's images per second."""
    (_, labels), _ = data
    for epoch, results in zip(range(epochs + 1), program, strict=False):
        for value in results.values():
            float(value)  # wait for the end of the epoch
        if epoch == 0:  # the first epoch compiles
            start = time.perf_counter()
    report_throughput(epochs * labels.size / (time.perf_counter() - start))


def compare(
    world: jcc.Communicator, epochs: int, programs: Mapping[str, Callable[[], Results]]
) -> None:
    """Trains with each of ``programs``; rank 0 prints a table with a row for each.

    Args:
      world: all ranks.
      epochs: number of epochs of each program.
      programs: functions by name, without arguments; each yields a dict of numbers after every
        epoch. The table has the last one.
    """
    raw_bytes = None
    for name, program in programs.items():
        stats.reset()
        first = None
        for _, results in zip(range(epochs), program(), strict=False):
            row = {key: float(value) for key, value in results.items()}
            # Do not count the first epoch, in which ranks wait for each other to compile.
            first = first or stats.get().total
        assert first is not None
        done = stats.get().total
        row["MiB sent"] = done.remote_bytes / 2**20
        row["ms/epoch"] = 1e3 * (done.seconds - first.seconds) / max(epochs - 1, 1)
        if world.rank != 0:
            continue
        if raw_bytes is None:
            raw_bytes = done.remote_bytes
            print(
                f"{world.size} ranks, {epochs} epochs. Sent by rank 0; in communication: ms/epoch"
            )
            print(f"{'':<20}" + "".join(f"{key:>12}" for key in row) + f"{'ratio':>9}")
        ratio = raw_bytes / max(done.remote_bytes, 1)
        values = "".join(f"{value:>12.4f}" for value in row.values())
        print(f"{name:<20}{values}{ratio:>8.2f}x", flush=True)
    own_host = np.int32(zlib.crc32(socket.gethostname().encode()) & 0x7FFFFFFF)
    hosts = set(np.asarray(jcc.allgather(own_host)).tolist())
    if world.rank == 0 and world.size > 1 and len(hosts) == 1:
        print(
            "All ranks are on one host, where memory is the link: a codec saves bytes, and little "
            "time. docs/testbed.md emulates slow links."
        )

"""Compares averaging in every step with outer steps over slow links: bytes, seconds and loss.

    python -m testbed.outer --json docs/results/outer.jsonl

All hosts train a transformer on bytes, each with its own data, with AdamW as the inner optimiser.
Some ways average gradients in every step, raw or encoded; others exchange parameters every
``--every`` steps (`jaxccomp.optim.diloco`, `sparse_loco` and `Streaming`). Every ``--every`` steps
each way records the seconds of training (without evaluation), the bytes sent and the loss on
held-out text. The way "alone" exchanges nothing: its time is the time of computing.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from testbed import scenario, workers
from testbed.training import data, models

TASK = "transformer"
# name: (kind, keyword arguments)
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "alone": ("alone", {}),
    "every step, raw": ("every step", {}),
    "every step, bf16": ("every step", {"codec": "bf16"}),
    "every step, int8": ("every step", {"codec": "int8"}),
    "diloco, int4": ("diloco", {"codec": "int4", "error_feedback": True}),
    "sparse_loco": ("sparse_loco", {}),
    "streaming diloco, int4": ("streaming", {"codec": "int4", "error_feedback": True}),
}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.outer", description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=30, help="steps between outer steps")
    parser.add_argument("--fragments", type=int, default=3, help="fragments of Streaming")
    parser.add_argument("--delay", type=int, default=5, help="delay of Streaming, in steps")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # of the worker
    return scenario.run(parser, _measure, table=markdown, worker="way", work=_work)


def markdown(lines: list[dict[str, Any]]) -> str:
    """A Markdown table of a results file."""
    rows = [line for line in lines if "way" in line]
    last = rows[0]["points"][-1]["step"]
    heads = ["way", "a step", "of computing alone", "sent a step", f"loss after {last} steps"]
    heads += [f"seconds until it is {rows[0]['loss_of_all']}", "exchange hidden"]
    cells = (
        (
            row["way"],
            f"{row['seconds_per_step']:.3f} s",
            f"{row['computing']:.0%}",
            f"{row['sent_bytes_per_step'] / 1e3:.0f} kB",
            f"{row['points'][-1]['loss']:.2f}",
            f"{row['seconds_to_it']:.0f}" if row["seconds_to_it"] else "",
            f"{row['hidden']:.0%}" if "hidden" in row else "",
        )
        for row in rows
    )
    return scenario.markdown(heads, cells)


def _measure(given: argparse.Namespace) -> list[scenario.Line]:
    from testbed.bed import Testbed

    rows = []
    with Testbed(given.hosts, given.link) as bed:
        goodput = statistics.median(bed.measure_goodput().values())
        for way in given.ways:
            program = [__file__, "--way", way]
            program += scenario.options(given, "steps", "every", "fragments", "delay")
            env = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
            found = workers.run(program, bed, env=env, timeout_seconds=3600)
            rows.append(_row(way, given, goodput, found))
            print(rows[-1], flush=True)
    _add_times_to_the_same_loss(rows)
    return rows


def _row(
    way: str, given: argparse.Namespace, goodput: float, found: workers.Found
) -> dict[str, Any]:
    said = found.said
    rounded = scenario.rounded
    points = [
        {
            "step": each[0]["step"],
            "seconds": rounded(max(point["seconds"] for point in each)),
            "sent_bytes": max(point["sent"] for point in each),
            "loss": rounded(statistics.mean(point["loss"] for point in each)),
        }
        for each in zip(*(one["points"] for one in said), strict=True)
    ]
    row = {
        "way": way,
        "hosts": given.hosts,
        "link": given.link,
        "goodput_GBps": rounded(goodput / 1e9),
        "parameters": said[0]["parameters"],
        "every": given.every,
        "seconds_per_step": rounded(points[-1]["seconds"] / points[-1]["step"]),
        "sent_bytes_per_step": rounded(points[-1]["sent_bytes"] / points[-1]["step"]),
        "received_bytes_in_all": found.received_bytes,
        "equal_at_the_end": len({one["crc"] for one in said}) == 1,
        "points": points,
    }
    if exchange := max(one["exchange"] for one in said):
        waited = max(one["waited"] for one in said)
        row |= {"exchange_seconds": rounded(exchange), "waited_seconds": rounded(waited)}
        row["hidden"] = rounded(1 - waited / exchange)
    return row


def _add_times_to_the_same_loss(rows: list[dict[str, Any]]) -> None:
    """Add the seconds until the loss that all exchanging ways reach, and the share of computing."""
    alone = next((row["seconds_per_step"] for row in rows if row["way"] == "alone"), None)
    exchanging = [row for row in rows if row["way"] != "alone"]
    target = max((row["points"][-1]["loss"] for row in exchanging), default=0)
    for row in rows:
        there = (each["seconds"] for each in row["points"] if each["loss"] <= target)
        row["loss_of_all"], row["seconds_to_it"] = target, next(there, None)
        if alone is not None:
            row["computing"] = scenario.rounded(alone / row["seconds_per_step"])


def _work(given: argparse.Namespace) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import jaxccomp as jcc

    world = jcc.init()
    kind, options = WAYS[given.way]
    optimizer = optax.adamw(1e-3)
    if kind == "every step":
        average = jcc.optim.allreduce_gradients(bucket_bytes=4 << 20, **options)
        optimizer = optax.chain(average, optimizer)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        return models.loss(TASK, params, x, y)

    @jax.jit
    def inner_step(params: Any, inner: Any, x: Any, y: Any) -> Any:
        updates, inner = optimizer.update(jax.grad(loss_of)(params, x, y), inner, params)
        return optax.apply_updates(params, updates), inner

    params = jax.tree.map(jnp.asarray, data.init(TASK, 0))
    after, finish, streaming = _outer(given, kind, options, params)
    inner = optimizer.init(params)
    batches = data.batches(TASK, world.rank, world.size, 0)
    evaluate = jax.jit(loss_of)
    held_out = [each[:64] for each in data.held_out(TASK, 0)]
    # Compile everything except the outer steps (see `_outer`).
    jax.block_until_ready([inner_step(params, inner, *next(batches)), evaluate(params, *held_out)])
    jcc.barrier()
    jcc.stats.reset()
    points: list[dict[str, Any]] = []
    seconds = 0.0
    for first in range(0, given.steps, given.every):
        numbers = range(first + 1, min(first + given.every, given.steps) + 1)
        ready = list(itertools.islice(batches, len(numbers)))
        begun = time.perf_counter()
        for number, (x, y) in zip(numbers, ready, strict=True):
            params, inner = inner_step(params, inner, x, y)
            params = after(number, params)
        if numbers[-1] == given.steps:
            params = finish(params)
        jax.block_until_ready(params)
        seconds += time.perf_counter() - begun
        sent = jcc.stats.get().total.sent_bytes
        loss = float(evaluate(params, *held_out))
        points.append({"step": numbers[-1], "seconds": seconds, "sent": sent, "loss": loss})
    workers.say(
        {
            "points": points,
            "parameters": sum(x.size for x in jax.tree.leaves(params)),
            "crc": _crc(np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])),
            "exchange": streaming.exchange_seconds if streaming else 0.0,
            "waited": streaming.waited_seconds if streaming else 0.0,
        }
    )


def _outer(
    given: argparse.Namespace, kind: str, options: dict[str, Any], params: Any
) -> tuple[Callable[[int, Any], Any], Callable[[Any], Any], Any]:
    """Return functions to call after each inner step and at the end, and the `Streaming` if any."""
    import jax

    from jaxccomp import optim

    if kind in ("alone", "every step"):
        return lambda number, params: params, lambda params: params, None
    outer = optim.sparse_loco(**options) if kind == "sparse_loco" else optim.diloco(**options)
    if kind == "streaming":
        streaming = optim.Streaming(outer, given.every, given.fragments, given.delay)
        state = streaming.init(params)

        def stream(number: int, params: Any) -> Any:
            nonlocal state
            params, state = streaming.step(params, state)
            return params

        return stream, lambda params: streaming.finish(params, state)[0], streaming

    state = outer.init(params)
    # Compile before the clock starts.
    step = jax.jit(outer.step).lower(params, state).compile()

    def every_so_many(number: int, params: Any) -> Any:
        nonlocal state
        if number % given.every == 0:
            params, state = step(params, state)
        return params

    return every_so_many, lambda params: params, None


def _crc(values: Any) -> int:
    import zlib

    return zlib.crc32(values.tobytes())


if __name__ == "__main__":
    sys.exit(main())

"""Measures how well an operation overlaps with independent computation.

    python -m testbed.overlap --json docs/results/overlap.jsonl

Two hosts with a core each sum values (about 20 ms on the wire) and multiply matrices (15 to 30 ms
of a core): each alone, and together in one jitted function that calls ``nonblocking(allreduce)``
before and ``wait`` after the product. The styles are between processes over MPI, between processes
over UCX, and along an axis of `shard_map` under `jax.distributed`.

The processor time of an operation (socket copies, additions) cannot be hidden, since it runs on the
core that computes. It is the processor time of both together minus the time of computing alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from testbed import scenario, workers

STYLES = ("comm", "comm over UCX", "axis")
WAYS = ("computing", "operation", "together")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.overlap", description=__doc__)
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--values", type=int, default=600_000, help="float32, of each host")
    parser.add_argument("--products", type=int, default=36, help="of two matrices, in a row")
    parser.add_argument("--side", type=int, default=320, help="of the matrices")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--style", choices=STYLES, help=argparse.SUPPRESS)  # of the worker
    return scenario.run(parser, _measure, table=markdown, worker="style", work=_work)


def markdown(lines: list[dict[str, Any]]) -> str:
    """A Markdown table of a results file."""
    rows = [line for line in lines if "style" in line]
    cells = (
        (
            row["style"],
            *(f"{row[f'{way}_ms']:.1f} ms" for way in WAYS),
            f"{row['of_longer']:.2f} x",
            f"{row['adds_processor_ms']:.1f} ms",
            f"{row['together_ms'] / _min_ms(row):.2f} x",
        )
        for row in rows
    )
    heads = (
        "style",
        *WAYS,
        "of the longer",
        "processor time that it adds",
        "of the longer with that",
    )
    return scenario.markdown(heads, cells)


def _min_ms(row: dict[str, Any]) -> float:
    """Lower bound of the time of both together."""
    return max(row["operation_ms"], row["computing_ms"] + row["adds_processor_ms"])


def _measure(given: argparse.Namespace) -> list[scenario.Line]:
    from testbed.bed import Testbed

    rows = []
    with Testbed(2, given.link) as bed:
        for style in STYLES:
            program = [__file__, "--style", style]
            program += scenario.options(given, "values", "products", "side", "calls")
            env = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
            said = workers.run(program, bed, env=env, timeout_seconds=300).said
            rows.append({"style": style, "link": given.link, "values": given.values} | _row(said))
            print(rows[-1], flush=True)
    return rows


def _row(said: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over calls of the slower host's seconds."""
    seconds = {
        way: statistics.median(map(max, zip(*(each[way] for each in said), strict=True)))
        for way in WAYS
    }
    longer = max(seconds["computing"], seconds["operation"])
    row = {f"{way}_ms": round(1e3 * s, 2) for way, s in seconds.items()}
    row["of_longer"] = round(seconds["together"] / longer, 3)
    adds = [
        statistics.median(each["processor"]["together"])
        - statistics.median(each["processor"]["computing"])
        for each in said
    ]
    return row | {"adds_processor_ms": round(1e3 * max(adds), 2)}


def _work(given: argparse.Namespace) -> None:
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    calls = _calls(given)
    found: dict[str, Any] = {way: [] for way in WAYS}
    found["processor"] = {way: [] for way in WAYS}
    for number in range(given.calls + 5):
        for way in WAYS:
            workers.barrier(world, pause_seconds=0.001)
            begun, used = time.perf_counter(), time.process_time()
            result = calls[way]()
            if number >= 5:
                found[way].append(time.perf_counter() - begun)
                found["processor"][way].append(time.process_time() - used)
    assert np.isfinite(np.asarray(result[1])).all()
    workers.say(found)


def _calls(given: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    import jax.numpy as jnp

    import jaxccomp as jcc

    how: dict[str, Any] = {}
    if given.style != "comm":
        jcc.config.set("transport", "ucx")
    if given.style == "axis":
        workers.join_distributed()
        how["axis_name"] = "i"
    jcc.init()

    def compute(w: Any) -> Any:
        y = w
        for _ in range(given.products):
            y = jnp.tanh(y @ w)
        return y

    def together(x: Any, w: Any) -> Any:
        handle = jcc.nonblocking(jcc.allreduce)(x, **how)
        y = compute(w)
        return handle.wait(after=y), y

    programs = {
        "computing": lambda x, w: (x, compute(w)),
        "operation": lambda x, w: (jcc.allreduce(x, **how), w),
        "together": together,
    }
    operands = (jnp.ones(given.values, jnp.float32), jnp.eye(given.side) / 2)
    if given.style == "axis":
        return {way: _along_axis(program, operands) for way, program in programs.items()}
    return {way: _alone(program, operands) for way, program in programs.items()}


def _alone(program: Callable[..., Any], operands: tuple[Any, ...]) -> Callable[[], Any]:
    """A call of ``program`` on this process's operands."""
    import jax

    call = jax.jit(program)
    return lambda: jax.block_until_ready(call(*operands))


def _along_axis(program: Callable[..., Any], operands: tuple[Any, ...]) -> Callable[[], Any]:
    """A call of ``program`` on each process's operands, along the axis ``i``."""
    import jax
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((jax.device_count(),), ("i",), (AxisType.Auto,))
    rows = NamedSharding(mesh, P("i"))
    stacked = [jax.make_array_from_process_local_data(rows, each[None]) for each in operands]
    call = jax.jit(
        jax.shard_map(
            lambda *each: jax.tree.map(lambda y: y[None], program(*(row[0] for row in each))),
            mesh=mesh,
            in_specs=P("i"),
            out_specs=P("i"),
            check_vma=False,
        )
    )
    return lambda: [
        each.addressable_shards[0].data for each in jax.block_until_ready(call(*stacked))
    ]


if __name__ == "__main__":
    sys.exit(main())

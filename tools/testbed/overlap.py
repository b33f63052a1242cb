"""An operation beside computing that does not need it: what both take together.

    python -m testbed.overlap --json docs/results/overlap.jsonl

Two hosts with a core each sum values, which takes the wire some 20 ms, and multiply matrices, which
takes a core some 30 ms: each alone, and together in one jitted function, started by
``allreduce_start`` and waited for after the product. In both styles: between processes, and along
an axis of `shard_map` under `jax.distributed`.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from testbed import command, workers

STYLES = ("comm", "axis")
WAYS = ("computing", "operation", "together")


def main() -> int:
    """The command line."""
    parser = command.parser(__doc__, STYLES)
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--values", type=int, default=600_000, help="float32, of each host")
    parser.add_argument("--products", type=int, default=36, help="of two matrices, in a row")
    parser.add_argument("--side", type=int, default=320, help="of the matrices")
    parser.add_argument("--calls", type=int, default=40)
    return command.run(parser.parse_args(), markdown=markdown, work=_work, compare=_compare)


def markdown(lines: list[dict[str, Any]]) -> str:
    """A table of what a file holds."""
    rows = [line for line in lines if "style" in line]
    text = (
        "| style | computing | operation | together | of the longer |\n|---|---:|---:|---:|---:|\n"
    )
    for row in rows:
        times = " | ".join(f"{row[f'{way}_ms']:.1f} ms" for way in WAYS)
        text += f"| {row['style']} | {times} | {row['of_longer']:.2f} x |\n"
    return text


def _compare(given: argparse.Namespace) -> int:
    from testbed.bed import Testbed

    rows = []
    with Testbed(2, given.link) as bed:
        for style in STYLES:
            program = [__file__, "--worker", style]
            for name in ("values", "products", "side", "calls"):
                program += [f"--{name}", str(getattr(given, name))]
            env = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
            try:
                said = workers.run(program, bed, env=env, timeout_seconds=300).said
            except workers.FailedError as error:
                print(error, file=sys.stderr)
                return 1
            rows.append({"style": style, "link": given.link, "values": given.values} | _row(said))
            print(rows[-1], flush=True)
    command.write(rows, given)
    return 0


def _row(said: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over calls of the slower host's seconds."""
    seconds = {
        way: statistics.median(map(max, zip(*(each[way] for each in said), strict=True)))
        for way in WAYS
    }
    longer = max(seconds["computing"], seconds["operation"])
    row = {f"{way}_ms": round(1e3 * s, 2) for way, s in seconds.items()}
    return row | {"of_longer": round(seconds["together"] / longer, 3)}


def _work(given: argparse.Namespace) -> int:
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    calls = _calls(given, world)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(given.calls + 5):
        for way in WAYS:
            # Asleep, as the other host shares the processor.
            ready = world.Ibarrier()
            while not ready.Test():
                time.sleep(0.001)
            begun = time.perf_counter()
            result = calls[way]()
            if number >= 5:
                found[way].append(time.perf_counter() - begun)
    assert np.isfinite(np.asarray(result[1])).all()
    workers.say(found)
    return 0


def _calls(given: argparse.Namespace, world: Any) -> dict[str, Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    import jaxccomp as jcc

    how: dict[str, Any] = {}
    if given.worker == "axis":
        first = world.bcast(socket.gethostbyname(socket.gethostname()))
        jax.distributed.initialize(f"{first}:29503", world.size, world.rank)
        jcc.config.set("transport", "ucx")
        how["axis_name"] = "i"
    jcc.init()

    def compute(w: Any) -> Any:
        y = w
        for _ in range(given.products):
            y = jnp.tanh(y @ w)
        return y

    def together(x: Any, w: Any) -> Any:
        handle = jcc.allreduce_start(x, **how)
        y = compute(w)
        return handle.wait(after=y), y

    programs = {
        "computing": lambda x, w: (x, compute(w)),
        "operation": lambda x, w: (jcc.allreduce(x, **how), w),
        "together": together,
    }
    operands = (jnp.ones(given.values, jnp.float32), jnp.eye(given.side) / 2)
    if given.worker == "axis":
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

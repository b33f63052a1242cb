"""Times allreduce by codec and size, relative to the time that its bytes need on the wire.

    python -m testbed.sizes --json docs/results/sizes.jsonl

Every host sums Gaussian float32 values with those of the others, as one array and as a pytree of
the leaves of a network. One launch measures all codecs and sizes in turns. The time on the wire is
the bytes on the busiest link divided by the rate of a TCP stream, which is measured before and
after.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from testbed import collectives, scenario, workers

_CODECS = ("raw", "bf16", "int8", "int4:block=256", "onebit")
_MIB = 1 << 20
_FORMS = ("array", "tree")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.sizes", description=__doc__)
    add = parser.add_argument
    add("--hosts", type=int, default=4)
    add("--link", default="1gbit")
    add("--sizes", default="1,6,24,64", help="in MiB, separated by commas")
    add("--codecs", default=",".join(_CODECS), help="separated by commas")
    add("--calls", type=int, default=8, help="timed calls of each")
    add("--rank", action="store_const", const=True, help=argparse.SUPPRESS)  # of the worker
    return scenario.run(parser, _measure, table=markdown, worker="rank", work=_work)


def markdown(lines: list[scenario.Line]) -> str:
    """A Markdown table of a results file."""
    rows = (
        (
            row["codec"],
            row["form"],
            f"{row['size_bytes'] / _MIB:g} MiB",
            f"{1e3 * row['seconds']:.1f} ms",
            f"{1e3 * row['wire_seconds']:.1f} ms",
            f"{row['seconds'] / row['wire_seconds']:.2f} x",
            f"{1e3 * row['coding_seconds']:.1f} ms",
        )
        for row in lines
        if "codec" in row
    )
    heads = ("codec", "values", "size", "time", "on the wire", "of the wire", "coding")
    return scenario.markdown(heads, rows, texts=2)


def _measure(given: argparse.Namespace) -> list[scenario.Line]:
    from testbed.bed import Testbed

    with Testbed(given.hosts, given.link) as bed:
        streams = list(bed.measure_goodput().values())
        program = [__file__, "--rank", *scenario.options(given, "sizes", "codecs", "calls")]
        said = workers.run(program, bed, timeout_seconds=1500).said
        streams += bed.measure_goodput().values()
    rate = statistics.median(streams)
    rows = []
    for cells in zip(*(each["cells"] for each in said), strict=True):
        (cell, *_) = cells
        seconds = map(max, zip(*(each["seconds"] for each in cells), strict=True))
        wire = max(statistics.median(each["wire_bytes"]) for each in cells)
        rows.append(
            {
                "codec": cell["codec"],
                "form": cell["form"],
                "size_bytes": cell["size_bytes"],
                "hosts": given.hosts,
                "link": given.link,
                "stream_bytes_per_second": round(rate),
                "wire_bytes": round(wire),
                "seconds": round(statistics.median(seconds), 5),
                "wire_seconds": round(wire / rate, 5),
                "coding_seconds": round(max(each["coding_seconds"] for each in cells), 5),
            }
        )
    print(markdown(rows))
    return rows


def _work(given: argparse.Namespace) -> None:
    from mpi4py import MPI

    import jaxccomp as jcc

    world = MPI.COMM_WORLD
    jcc.init()
    cells = [
        {
            "codec": codec,
            "form": form,
            "size_bytes": int(float(size) * _MIB),
            "seconds": [],
            "wire_bytes": [],
        }
        for size in given.sizes.split(",")
        for form in _FORMS
        for codec in given.codecs.split(",")
    ]
    for size in dict.fromkeys(cell["size_bytes"] for cell in cells):
        turns = [(cell, _call(cell)) for cell in cells if cell["size_bytes"] == size]
        for number in range(given.calls + 3):
            for cell, call in turns:
                workers.barrier(world)
                before, begun = collectives.wire_bytes(), time.perf_counter()
                call()
                took = time.perf_counter() - begun
                workers.barrier(world)  # all bytes have arrived when all ranks are done
                if number >= 3:
                    cell["seconds"].append(took)
                    cell["wire_bytes"].append(collectives.wire_bytes() - before)
        for cell, call in turns:
            workers.barrier(world)
            with jcc.trace.record() as timeline:
                call()
            cell["coding_seconds"] = timeline.busy(workers.CODING)
    workers.say({"cells": cells})


def _call(cell: dict[str, Any]) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    import jaxccomp as jcc

    values = jax.random.normal(jax.random.key(jcc.world().rank), cell["size_bytes"] // 4)
    if cell["form"] == "tree":  # three kernels and their biases
        kernel = (values.size - 3 * 256) // 3
        splits = [k * (kernel + 256) + part for k in range(3) for part in (kernel, kernel + 256)]
        operand = tuple(jnp.split(values, splits))
    else:
        operand = values
    call = jax.jit(lambda x: jcc.allreduce(x, op="mean", codec=cell["codec"]))
    return lambda: jax.block_until_ready(call(operand))


if __name__ == "__main__":
    sys.exit(main())

"""Runs one program of 64 independent collectives repeatedly.

A quarter of them use donated arguments, a quarter temporaries, and half are in inner jits that are
called twice. Several launches with different values are in flight at once. All results are compared
with the definition.

    python tests/stress/independent_collectives.py --runs 1000 --devices 8
    mpiexec -n 4 python tests/stress/independent_collectives.py --runs 1000

--wide multiplies the size of values, so that they are announced and sent in chunks.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

COLLECTIVES = 64
KINDS = (
    "bcast",
    "allreduce-sum",
    "allreduce-max",
    "reduce-sum",
    "reduce_scatter-sum",
    "allgather",
    "gather",
    "scatter",
    "alltoall",
    "allgatherv",
    "gatherv",
    "scatterv",
    "alltoallv",
    "scan-sum",
    "exscan-sum",
    "sendrecv",
)
IN_FLIGHT = 3
VARIANTS = 5
# Last dimension of operands: arguments, temporaries, and operands of inner jits (called twice).
WIDTHS = (3, 1500, 40, 40)


def make_program(place: Any, wide: int = 1) -> tuple[Callable[..., Any], list[Any]]:
    """Returns the program of a rank, and the contract's rows that it runs, in order."""
    import jax
    import jax.numpy as jnp
    from contract import OPERATIONS

    table = {row.name: row for row in OPERATIONS}
    rows = [_wide(table[name], wide * width) for width in WIDTHS for name in KINDS]
    assert len(rows) == COLLECTIVES
    kinds = len(KINDS)

    def program(inputs: list[Any], flag: Any) -> list[Any]:
        results = []
        for row, x in zip(rows[:kinds], inputs[:kinds], strict=True):
            results.append(row.call(place, x))
        for row, x in zip(rows[kinds : 2 * kinds], inputs[kinds : 2 * kinds], strict=True):
            results.append(row.call(place, jnp.where(flag, x, -x)))
        inner = [jax.jit(lambda x, row=row: row.call(place, x)) for row in rows[2 * kinds :]]
        inner[kinds:] = inner[:kinds]
        for function, x in zip(inner, inputs[2 * kinds :], strict=True):
            results.append(function(x))
        return results

    return program, rows


def _wide(row: Any, width: int) -> Any:
    return dataclasses.replace(row, shape=lambda n: (*row.shape(n)[:-1], width))


def check(place: Any, runs: int, *, wide: int = 1, progress: bool = False) -> list[str]:
    """Runs the program ``runs`` times.

    Returns:
      One text for each wrong result: run, collective, first values.
    """
    from contract import data

    program, rows = make_program(place, wide)
    launch = place.compiled(program, donate=True)
    inputs = [
        [row.inputs(place.n, seed=COLLECTIVES * variant + i) for i, row in enumerate(rows)]
        for variant in range(VARIANTS)
    ]
    expected = [
        [row.expected(x)[place.seen] for row, x in zip(rows, each, strict=True)] for each in inputs
    ]
    wrong: list[str] = []
    start = time.monotonic()
    for first in range(0, runs, IN_FLIGHT):
        burst = range(first, min(first + IN_FLIGHT, runs))
        results = [launch(place.spread(inputs[run % VARIANTS], donate=True)) for run in burst]
        for run, result in zip(burst, results, strict=True):
            for i, row in enumerate(rows):
                try:
                    data.assert_same(place.stacked(result[i]), expected[run % VARIANTS][i])
                except AssertionError as error:
                    wrong.append(f"run {run}, collective {i} ({row.name}): {error}")
        if progress and first % 99 == 0:
            print(
                f"  {first} runs, {time.monotonic() - start:.1f} s, {len(wrong)} wrong", flush=True
            )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument(
        "--devices", type=int, default=0, help="of one process; default: processes under mpiexec"
    )
    parser.add_argument("--wide", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds until it is a hang")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(arguments.timeout, exit=True)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if arguments.devices:
        count = f" --xla_force_host_platform_device_count={arguments.devices}"
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + count
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    from contract import AxisPlace, ProcessPlace

    import jaxccomp as jcc

    if arguments.devices:
        place: Any = AxisPlace(arguments.devices, "no_check_vma")
    else:
        place = ProcessPlace(jcc.init())
    wrong = check(place, arguments.runs, wide=arguments.wide, progress=not place.rank)
    for line in wrong[:10]:
        print(line)
    print(
        f"{place!r}: {arguments.runs} runs of {COLLECTIVES} collectives, {len(wrong)} wrong values"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

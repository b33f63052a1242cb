"""A rank of late.py: broadcasts to whose root the others come early, and queue many kernels behind.

Rank 0 prints a line of JSON for each codec and number of kernels: `held` is how long it took to
queue all of that, `seconds` how long until it was over. The root comes LATE seconds late.
"""

from __future__ import annotations

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import jaxccomp as jcc

ROOT = 1
LATE = 1.0
COUNT = 1 << 22
CODECS = (None, "lossless", "int8")
KERNELS = (0, 500, 3000)

world = jcc.init()


def main() -> int:
    """Returns 1 where a value is wrong."""
    add = jax.jit(lambda y: y + 1)
    small = add(jnp.zeros(256))
    wrong = 0
    for codec in CODECS:
        step = jax.jit(lambda x, codec=codec: jcc.bcast(x, root=ROOT, codec=codec))
        root_has = np.resize(np.arange(-127, 128, dtype=np.float32), COUNT)
        x = jnp.asarray(root_has if world.rank == ROOT else np.zeros_like(root_has))
        expected = np.asarray(jax.block_until_ready(step(x)))
        if codec != "int8" and not np.array_equal(expected, root_has):
            print(json.dumps({"codec": codec, "equal": False}), flush=True)
            wrong = 1
        for kernels in KERNELS:
            MPI.COMM_WORLD.Barrier()
            if world.rank == ROOT:
                time.sleep(LATE)
            start = time.perf_counter()
            result, y = step(x), small
            for _ in range(kernels):
                y = add(y)
            held = time.perf_counter() - start
            jax.block_until_ready((result, y))
            seconds = time.perf_counter() - start
            same = np.array_equal(np.asarray(result), expected) and float(y[0]) == kernels + 1
            row = {
                "codec": codec,
                "kernels_behind": kernels,
                "held": held,
                "seconds": seconds,
                "equal": same,
            }
            row["device_wait"] = jcc.config.get("device_wait")
            if world.rank == 0 or not same:
                print(json.dumps(row), flush=True)
            wrong |= not same
    jcc.check()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())

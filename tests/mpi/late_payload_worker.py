"""A payload that arrives after its operation has failed, on 2 ranks.

Rank 0 is stopped during a long broadcast, and continues after rank 1's deadline. Rank 1 has its
result's memory back by then, and uses it for other values.
"""

import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc

VALUES = 32 << 20  # 128 MiB


def main(milliseconds, stopped_seconds):
    world = jcc.init()
    step = jax.jit(lambda x: jcc.bcast(x, root=0))
    jax.block_until_ready(step(jnp.ones(VALUES)))
    if world.rank == 0:
        # A child stops and continues this process, which cannot do so itself.
        pid = os.getpid()
        subprocess.Popen(
            [
                "sh",
                "-c",
                f"sleep {milliseconds / 1000}; kill -STOP {pid}; "
                f"sleep {stopped_seconds}; kill -CONT {pid}",
            ]
        )
    begun = time.monotonic()
    told = ""
    try:
        # Repeat, so that the stop happens during a broadcast.
        while time.monotonic() - begun < milliseconds / 1000 + 2:
            jax.block_until_ready(step(jnp.full(VALUES, float(world.rank))))
    except Exception as error:
        told = str(error)
    seconds = time.monotonic() - begun
    if world.rank == 1:
        assert told and seconds < milliseconds / 1000 + stopped_seconds - 1, (seconds, told)
        # The result's memory is free: these arrays reuse it.
        mine = [np.full(VALUES, 7.0, np.float32) for _ in range(4)]
        time.sleep(max(0.0, begun + milliseconds / 1000 + stopped_seconds + 3 - time.monotonic()))
        assert all((each == 7.0).all() for each in mine), "a late payload was written there"
    print(f"rank {world.rank}: right, and was told after {seconds:.1f} s: {told[:300]}", flush=True)


if __name__ == "__main__":
    # os._exit below: this test does not cover waiting at an orderly end.
    stopped = float(sys.argv[2])
    signal.alarm(round(40 + 3 * stopped))
    main(float(sys.argv[1]), stopped)
    time.sleep(stopped)
    os._exit(0)

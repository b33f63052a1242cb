"""Injects faults that end ranks, one after the other; two ranks survive.

    mpiexec -n 2+RUNS python tests/stress/faults/death.py FAULT FIRST RUNS SEED

In each run one more rank dies, while it and the first two run the four operations in four threads,
each with its own communicator. If the launcher ends all ranks after a death, RUNS is 1.
"""

from __future__ import annotations

import faulthandler
import os
import pathlib
import random
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from stress.faults import operations, record
from stress.faults.table import BY_NAME, OPERATIONS

COUNT = 64
HANG_SECONDS = 60


def launches(operation, comm, root, number, victim):
    """Repeats the operation until it fails, and records the error."""
    step = jax.jit(lambda x: operations.run(operation, x, comm, root))
    text = wrong = ""
    for k in range(1_000_000):
        inputs = [operations.values(rank, k, COUNT) for rank in range(comm.size)]
        begun = time.monotonic()
        try:
            got = np.asarray(step(jnp.asarray(inputs[comm.rank])))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            break
        if not np.array_equal(got, operations.expected(operation, inputs, comm.rank, root)):
            wrong = f"launch {k}: {got.ravel()[:3]}"
            break
    if comm.rank != root:
        record.write(
            jcc.world().rank,
            run=number,
            operation=operation,
            victim=victim,
            seconds=round(time.monotonic() - begun, 3),
            text=text,
            wrong=wrong,
        )


def end(fault, moment):
    """Ends the victim."""
    time.sleep(moment)
    record.write(jcc.world().rank, died_at=time.time())
    if fault.startswith("SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault in ("exit status 3", "early exit"):
        os._exit(3)
    raise RuntimeError("boom")


def main(name, first, runs, seed):
    fault = BY_NAME[name]
    world = jcc.init()
    jcc.config.set("timeout_seconds", fault.seconds)
    turns = pathlib.Path(os.environ[record.FOLDER])
    for i in range(int(runs)):
        number, victim = int(first) + i, 2 + i
        # The ranks of a run begin together; later victims wait without a collective.
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        while world.rank == victim and i and not (turns / f"turn-{number}").exists():
            time.sleep(0.02)
        if world.rank not in (0, 1, victim):
            faulthandler.cancel_dump_traceback_later()
            continue
        members = (0, 1, victim)
        comms = {
            operation: operations.communicator(
                operation,
                jcc.Communicator(f"{operation.replace('/', '_')}{number}", members),
            )
            for operation in OPERATIONS
        }
        threads = [
            threading.Thread(
                target=launches, name=operation, args=(operation, comm, 2, number, victim)
            )
            for operation, comm in comms.items()
        ]
        is_early = name.startswith("early")
        if world.rank == victim and is_early:
            end(name, 0.0)
        for thread in threads:
            thread.start()
        if world.rank == victim:
            end(name, random.Random(f"{seed}-{number}").uniform(0.2, 0.8))
        for thread in threads:
            thread.join()
        pair = jcc.Communicator(f"pair{number}", (0, 1))
        if float(jcc.allreduce(jnp.float32(world.rank + 1), comm=pair)) == 3:
            record.write(world.rank, run=number, usable=True)
        if world.rank == 0:
            (turns / f"turn-{number + 1}").touch()
    # Skip MPI's finalisation, which this test does not cover.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

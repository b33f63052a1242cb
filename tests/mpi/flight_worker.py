"""Rank 1 does not come to an operation: `mpiexec -n 3 python flight_worker.py FOLDER CASE`.

"signal": each rank gets SIGUSR1, then rank 1 comes. "deadline": rank 1 never comes.
"""

import os
import pathlib
import signal
import sys
import time

import jax
import jax.numpy as jnp

import jaxccomp as jcc

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import patience  # noqa: E402

folder, case = pathlib.Path(sys.argv[1]), sys.argv[2]
world = jcc.init()
step = jax.jit(lambda x: jcc.allreduce(x, op="mean", algorithm="one_shot"))
x = jnp.ones(3, jnp.float32)
step(x).block_until_ready()
files = [folder / f"flight-{rank}.json" for rank in range(world.size)]


def wait_for(*paths):
    watch = patience.Stopwatch()
    while not all(path.exists() for path in paths):
        assert watch.seconds() < 20, paths
        time.sleep(0.01)


if world.rank == 1:
    if case == "signal":
        pids = folder / "pids"
        wait_for(*(pids / str(rank) for rank in (0, 2)))
        time.sleep(patience.seconds(0.5))  # until they wait for this rank
        for pid in (os.getpid(), *(int((pids / str(rank)).read_text()) for rank in (0, 2))):
            os.kill(pid, signal.SIGUSR1)
    wait_for(*files)
    assert jcc.trace.flight().operations[0].status == "OK"
    if case == "signal":
        step(x).block_until_ready()
else:
    pids = folder / "pids"
    pids.mkdir(exist_ok=True)
    (pids / f"{world.rank}.part").write_text(str(os.getpid()))
    (pids / f"{world.rank}.part").rename(pids / str(world.rank))
    try:
        step(x).block_until_ready()
        assert case == "signal"
    except Exception as error:
        assert case == "deadline" and jcc.errors.of(error) is not None, error
        wait_for(*files)
print(f"rank {world.rank} ends", flush=True)

"""Processes that ranks start: `mpiexec -n 2 python helpers_worker.py`.

This file joins at import, like programs whose data loader spawns workers. Helpers must not affect
the ranks.
"""

import multiprocessing
import os
import subprocess
import sys

import jax.numpy as jnp

import jaxccomp as jcc

world = jcc.init()
JOINS = "import jaxccomp; print('size', jaxccomp.init().size)"
ALONE = "import jaxccomp; print('size', jaxccomp.init(mpi='never', coordinator='').size)"


def run(code, *, launcher=(), **how):
    done = subprocess.run(
        [*launcher, sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        **how,
    )
    return done.returncode, done.stdout + done.stderr


def expect(right, text):
    if not right:
        print(f"WRONG on rank {world.rank}: {text}", flush=True)
        sys.exit(1)


def main():
    worker = multiprocessing.get_context("spawn").Process(target=len, args=((),))
    worker.start()
    worker.join()
    expect(worker.exitcode == 1, f"the worker's exit code is {worker.exitcode}")
    for how in ({}, {"close_fds": False}):
        status, text = run(JOINS, **how)
        expect(status == 1 and "rank" in text, text)
    status, text = run(ALONE)
    expect(status == 0 and "size 1" in text, text)
    if world.rank == 0:  # a separate job
        mpiexec = os.path.join(os.path.dirname(sys.executable), "mpiexec")
        status, text = run(JOINS, launcher=[mpiexec, "-n", "1"])
        expect(status == 0 and "size 1" in text, text)
    expect(jcc.allreduce(jnp.ones(1))[0] == world.size, "the ranks' sum")
    print("right", flush=True)


if __name__ == "__main__":
    main()

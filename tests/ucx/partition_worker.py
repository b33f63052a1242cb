"""A member that sums repeatedly, and continues in the group that remains. Prints its events.

Each line is a JSON object with "event" and the time in seconds.
"""

import functools
import json
import sys
import time

import jax
import jax.numpy as jnp

import jaxccomp as jcc

PAUSE_SECONDS = 0.02
SAYS_EVERY_SECONDS = 0.5


@functools.partial(jax.jit, static_argnames="comm")
def total(x, comm):
    return jcc.allreduce(x, comm=comm)


def say(event, **more):
    print(json.dumps({"event": event, "time": time.time(), **more}), flush=True)


def main(seconds):
    comm = jcc.init()
    end = time.time() + seconds
    steps = 0
    said, said_at = None, 0.0
    while time.time() < end:
        try:
            value = float(total(jnp.ones(1000), comm=comm)[0])
            steps += 1
            if said != comm.processes:
                said = comm.processes
                assert value == comm.size
                say("works", members=comm.processes, name=comm.name)
            if time.time() - said_at > SAYS_EVERY_SECONDS:
                said_at = time.time()
                say("steps", steps=steps)
            time.sleep(PAUSE_SECONDS)
        except Exception as error:
            say("fails", text=str(error)[:200])
            try:
                comm = comm.shrink()
            except jcc.errors.JaxccompError as error:
                say("ends", kind=type(error).__name__, text=str(error))
                raise
    say("done", steps=steps)


if __name__ == "__main__":
    main(float(sys.argv[1]))

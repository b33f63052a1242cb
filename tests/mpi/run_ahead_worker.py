"""One of 2 ranks never waits, the other is slow: `run_ahead_worker.py OPERATION COUNT`."""

import sys
import time

import jax
import jax.numpy as jnp

import jaxccomp as jcc

PAUSE_SECONDS = 0.0005
ELEMENTS = 256
PARTS = 10


def resident_mib():
    """Return the resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) / 256


def main(operation, count):
    """Return a list of failures."""
    world = jcc.init()
    ordered = world.ordered()
    first = world.rank == 0
    step = jax.jit(
        {
            "bcast": lambda x: jcc.bcast(x, root=0),
            "reduce": lambda x: jcc.reduce(x, root=0),
            "scatter": lambda x: jcc.scatter(jnp.stack([x, x + 0.5]), root=0),
            "send": lambda x: (
                (jcc.send(x, dest=1, comm=ordered), x)[1]
                if first
                else jcc.recv(x, source=0, comm=ordered)
            ),
        }[operation]
    )
    slow = first == (operation == "reduce")
    expected = {"bcast": 0, "reduce": 1, "scatter": 0.5, "send": 0}[operation]
    wrong, seconds, memory = [], [], []
    jax.block_until_ready(step(jnp.zeros(ELEMENTS)))
    began = begun = time.monotonic()
    for i in range(count):
        # The value identifies the call.
        y = step(jnp.full(ELEMENTS, float(i + world.rank)))
        if slow:
            jax.block_until_ready(y)
            time.sleep(PAUSE_SECONDS)
            got = float(y[-1])
            if got != (2 * i if operation == "reduce" else i) + expected:
                wrong.append(f"call {i} gave {got}")
        if (i + 1) % (count // PARTS) == 0:
            now = time.monotonic()
            seconds.append(now - begun)
            memory.append(resident_mib())
            begun = now
    elapsed = time.monotonic() - began
    jax.block_until_ready(y)
    print(f"rank {world.rank}: seconds {seconds}, MiB {memory}", flush=True)
    throttled = jcc.config.get("early_messages") < count // 2
    if throttled and memory[-1] - memory[0] > 16:
        wrong.append(f"memory has grown from {memory[0]} to {memory[-1]} MiB")
    # Other load on the machine slows some parts of the run; a growing cost slows the last parts.
    if slow and min(seconds[-3:]) > 6 * min(seconds):
        wrong.append("calls cost more when more messages wait")
    others = jcc.allgather(jnp.float32(elapsed))
    if throttled and min(others) < max(others) / 2:
        wrong.append(f"one side did not wait for the other: {others} seconds")
    return wrong


if __name__ == "__main__":
    found = main(sys.argv[1], int(sys.argv[2]))
    assert not found, "\n".join(found[:10])

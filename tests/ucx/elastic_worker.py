"""A process of a group that meets at a coordinator. Prints one JSON object."""

import functools
import json
import os
import pathlib
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from jaxccomp import comm, sync

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import patience  # noqa: E402

SIZE = 300_000


@functools.partial(jax.jit, static_argnames="comm")
def total(x, comm):
    return jcc.allreduce(x, comm=comm)


def failed(call):
    """Repeat the call until it fails before its deadline; return the error text."""
    try:
        while True:
            jax.block_until_ready(call())
    except Exception as error:  # noqa: BLE001 - only its text is used
        assert not patience.at_deadline(str(error)), error
        return str(error)


def lost_and_joined(rank):
    """Rank 0, the coordinator, is killed; the others continue, and another process joins."""
    world = jcc.init()
    joins = bool(jcc.config.get("join"))
    found = {"process": world.processes[world.rank]}
    params = {"w": jnp.full(SIZE, 7, jnp.float32), "step": jnp.int32(0)}
    if not joins:
        assert float(total(jnp.ones(SIZE), comm=world)[0]) == world.size
        params["step"] = jnp.int32(5)
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        found["error"] = failed(lambda: total(jnp.ones(SIZE), comm=world))
        world = world.shrink()
        found["shrunk"] = list(world.processes)
        found["of_two"] = float(total(jnp.ones(SIZE), comm=world)[0])
        assert world == jcc.world()
        print_address()
        while world.size == found["of_two"]:
            world = world.admit()
            time.sleep(0.05)
    params = sync.replicate(params)
    found["step"] = int(params["step"])
    found["w"] = float(params["w"].sum())
    found["members"] = list(world.processes)
    found["rank"] = world.rank
    found["total"] = float(total(jnp.ones(SIZE), comm=world)[0])
    found["coded"] = float(np.asarray(jcc.allreduce(jnp.ones(SIZE), codec="int8"))[0])
    return found


def print_address():
    """Print the address at which another process may ask to join."""
    print("address {}:{}".format(*comm._joined().out_of_band.address), flush=True)


def admitted(world, joins, size):
    """Admit processes until the world has ``size`` of them, and return it."""
    if not joins:
        print_address()
        while world.size < size:
            world = world.admit()
            time.sleep(0.02)
    return world


def stopped(rank):
    """Rank 2 is stopped from outside, and continued after the others have continued without it."""
    world = jcc.init()
    total(jnp.ones(SIZE), comm=world).block_until_ready()
    print("ready now", flush=True)
    found = {"error": failed(lambda: total(jnp.ones(SIZE), comm=world))}
    try:
        world = world.shrink()
    except jcc.errors.CutOffError as error:
        return found | {"cut_off": str(error)}
    found["total"] = float(total(jnp.ones(SIZE), comm=world)[0])
    print("total now", flush=True)
    sys.stdin.readline()
    return found


def grows(rank):
    """A group of one process, which another process joins."""
    world = admitted(jcc.init(), rank is None, 2)
    return {"size": world.size, "total": float(total(jnp.ones(SIZE), comm=world)[0])}


def other_arrays(rank):
    """The joining process has arrays of another shape."""
    world = admitted(jcc.init(), rank is None, 2)
    try:
        sync.replicate({"w": jnp.zeros(4 if rank is None else 3, jnp.float32)})
        found = {"error": "none"}
    except jcc.errors.InvalidArgumentError as error:
        found = {"error": str(error)}
    return found | {"total": float(total(jnp.ones(SIZE), comm=world)[0])}


def weights(version):
    """Return a version's weights; few change between versions."""
    start = np.random.default_rng(0).normal(0, 0.02, 50_000).astype(np.float32)
    changed = np.random.default_rng(version).random(start.size) < 0.02
    return {"w": jnp.asarray(start + changed * version * 1e-3, jnp.bfloat16)}


def bits(params):
    return np.asarray(params["w"]).tobytes()


def actor(rank):
    """Rank 0 trains; rank 2 is killed, restarted, and catches up with the actor of rank 1."""
    if rank == 0:
        jcc.init()
        print_address()
        with sync.Publisher(weights(0)) as publisher:
            for version in (1, 2, 3):
                publisher.publish(weights(version))
            sys.stdin.readline()
            publisher.publish(weights(4))
        return {"last": 4}
    receiver = sync.Receiver(weights(0))
    third = receiver.wait(2)
    assert bits(third.params) == bits(weights(3))
    print("has", third.version, flush=True)
    if rank == 2:
        time.sleep(100)
    last = receiver.wait(3)
    assert bits(last.params) == bits(weights(4))
    return {"last": last.version}


def main(case):
    rank = os.environ.get("JAXCCOMP_RANK")
    print(json.dumps(globals()[case](None if rank is None else int(rank))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

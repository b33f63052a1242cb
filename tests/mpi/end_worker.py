"""Ends of programs, and progress of idle ranks: `mpiexec -n 2 python end_worker.py CASE`."""

import os
import pathlib
import sys
import time

import jax
import jax.numpy as jnp

import jaxccomp as jcc

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import patience  # noqa: E402

LARGE = 16 << 20  # float32: far above MPI's eager limit


def gather(world, count):
    return jax.block_until_ready(jcc.allgather(jnp.full(count, world.rank, jnp.float32)))


def idle(world):
    """A rank that has its result and calls nothing does not delay the other rank."""
    gather(world, LARGE)
    for turn in range(4):
        gather(world, LARGE)
        done = pathlib.Path(os.environ["JAXCCOMP_TEST_FOLDER"], str(turn))
        if world.rank != turn % 2:
            done.touch()
            continue
        # The other rank receives all values while this one calls nothing.
        assert patience.wait_for(done.exists, 30)
        time.sleep(0.5)  # the other rank reaches the next gather first


def leave(world):
    """A rank may end while its last operation's messages are in flight."""
    for _ in range(3):
        gather(world, LARGE)


def finalize(world):
    """The program may finalise MPI itself, also while other ranks communicate."""
    from mpi4py import MPI

    gather(world, LARGE)
    MPI.Finalize()
    time.sleep(0.2)  # no thread may call MPI now


def leave_early(world):
    """Waiting for a rank that has ended raises, long before the deadline."""
    gather(world, 4)
    if world.rank == 0:
        try:
            gather(world, 5)
        except Exception as error:  # noqa: BLE001 - its type is JAX's business
            assert "rank 1 of the world has ended its program" in str(error), error
            assert "gather(" in str(error) and "end_worker.py:" in str(error), error
        else:
            raise AssertionError("gathered from a rank that has ended")


QUEUED = 50


@jax.jit
def step(x):
    return jcc.allreduce(x, op="mean") + 1


def many_steps(x):
    for _ in range(QUEUED):
        x = step(x)
    return x


def leave_queued(world):
    """A rank may end with dispatched operations that it does not wait for."""
    x = many_steps(jnp.zeros(1 << 20))
    if world.rank == 0:
        assert float(x[0]) == QUEUED


def leave_dropped(world):
    """The same, with all results deleted and all of the rank's devices busy."""
    devices = jax.local_devices()
    split = jax.NamedSharding(jax.make_mesh((len(devices),), ("i",)), jax.P("i"))
    compute = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, a: jnp.tanh(a @ a), x))
    compute(jax.device_put(jnp.ones((200, 200)), split))
    compute(jnp.ones((200, 200)))
    x = many_steps(jnp.zeros(1 << 20))
    y = jcc.allreduce(jnp.ones(4), comm=world.ordered())
    if world.rank == 0:
        assert float(x[0]) == QUEUED and float(y[0]) == world.size


def leave_failed(world):
    """After an uncaught exception a rank waits for nothing: it might wait for ever."""
    gather(world, 4)
    if world.rank == 1:
        everyone = world.ordered()
        jax.jit(lambda x: jcc.allreduce(x, comm=everyone) + 1)(jnp.zeros(1 << 20))  # alone
        time.sleep(2)  # rank 0 has reached its gather, and has asked for this rank's state
        raise RuntimeError("on purpose")
    try:
        gather(world, 5)
    except Exception as error:  # noqa: BLE001 - its type is JAX's business
        assert "RuntimeError: on purpose" in str(error), error
    else:
        raise AssertionError("gathered from a rank that has failed")
    sys.stdout.write("rank 0 was told at once\n")


CASES = (idle, leave, finalize, leave_early, leave_queued, leave_dropped, leave_failed)

if __name__ == "__main__":
    cases = {case.__name__: case for case in CASES}
    cases[sys.argv[1]](jcc.init())

"""Asynchronous operations between processes: started in one place, waited for in another."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc


def test_handles_can_be_waited_in_another_order(world):
    @jax.jit
    def program(x):
        total = jcc.nonblocking(jcc.allreduce)(x)
        everything = jcc.nonblocking(jcc.allgather)(x)
        first = jcc.nonblocking(jcc.bcast)(x)
        y = jnp.tanh(x)
        return first.wait(after=y), everything.wait(), total.wait()

    for step in range(20):  # without waiting for a step
        each = np.arange(5, dtype=np.float32) + 10 * np.arange(world.size)[:, None] + step
        first, everything, total = program(jnp.asarray(each[world.rank]))
    np.testing.assert_array_equal(first, each[0])
    np.testing.assert_array_equal(everything, each)
    np.testing.assert_array_equal(total, each.sum(axis=0))


def test_nonblocking_send_and_recv_exchange_values(world):
    following, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    comm = world.ordered()

    @jax.jit
    def program(x):
        sent = jcc.nonblocking(jcc.send)(x, dest=following, comm=comm)
        came = jcc.nonblocking(jcc.recv)(x, source=before, comm=comm)
        return came.wait(after=sent.wait())

    got = program(jnp.arange(4) + 100 * world.rank)
    np.testing.assert_array_equal(got, np.arange(4) + 100 * before)

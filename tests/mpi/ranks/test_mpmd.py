"""Communicators, and programs that differ between ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises

import jaxccomp as jcc


def several(world):
    if world.size == 1:
        pytest.skip("needs more than one rank")


def test_split_by_parity_forms_independent_groups(world):
    part = world.split(world.rank % 2)
    members = [r for r in range(world.size) if r % 2 == world.rank % 2]
    assert part.processes == tuple(members) and part.rank == world.rank // 2
    total = jax.jit(lambda x: jcc.allreduce(x, comm=part))(jnp.float32(world.rank))
    assert total == sum(members)
    # Both groups at the same time, and the world.
    x = jnp.arange(4.0) + world.rank

    @jax.jit
    def both(x):
        return jcc.allgather(x, comm=part), jcc.allgather(x), jcc.bcast(x, root=0, comm=part)

    inner, outer, first = both(x)
    np.testing.assert_array_equal(inner, np.stack([np.arange(4.0) + r for r in members]))
    np.testing.assert_array_equal(outer, np.stack([np.arange(4.0) + r for r in range(world.size)]))
    np.testing.assert_array_equal(first, np.arange(4.0) + members[0])


def test_split_reverses_ranks_by_key(world):
    part = world.split(0, key=-world.rank)
    assert part.rank == world.size - 1 - world.rank
    result = jcc.bcast(jnp.int32(world.rank), root=0, comm=part)
    assert result == world.size - 1
    gathered = jcc.allgather(jnp.int32(world.rank), comm=part)
    np.testing.assert_array_equal(gathered, np.arange(world.size)[::-1])


def test_communicator_names_agree_after_a_split_with_color_none(world, ranks):
    world.split(0 if world.rank == 0 else None)
    names = ranks.allgather(world.split(1, key=-world.rank).name)
    assert len(set(names)) == 1, names


def test_split_with_color_none_returns_no_communicator(world):
    part = world.split(0 if world.rank == 0 else None)
    assert (part is None) == (world.rank != 0)
    if part is not None:
        assert jcc.allreduce(jnp.int32(7), comm=part) == 7
    stranger = jcc.Communicator("of rank 0", (0,))
    if world.rank != 0:
        with raises(jcc.errors.CommunicatorError, f"process {world.rank} ", "'of rank 0'", "[0]"):
            jcc.allreduce(jnp.int32(7), comm=stranger)


def test_operations_of_a_group_do_not_change_matching_of_the_world(world):
    part = world.split(0 if world.rank < 2 else None)

    @jax.jit
    def program(x):
        x = jcc.allreduce(x)
        if part is not None:
            x = jcc.allreduce(x, comm=part) / part.size
        return jcc.allreduce(x, "max")

    np.testing.assert_array_equal(program(jnp.ones(3)), np.full(3, float(world.size)))


def test_from_mpi4py_keeps_ranks_and_order(world):
    MPI = pytest.importorskip("mpi4py.MPI")
    assert jcc.Communicator.from_mpi4py(MPI.COMM_WORLD) == world
    reversed_comm = MPI.COMM_WORLD.Split(0, -world.rank)
    comm = jcc.Communicator.from_mpi4py(reversed_comm)
    assert comm.rank == reversed_comm.Get_rank()
    ours = jcc.scan(jnp.float32(world.rank + 1), comm=comm)
    assert ours == reversed_comm.scan(world.rank + 1)
    reversed_comm.Free()


def test_communicator_is_a_static_argument(world):
    traces = []

    def total(x, comm):
        traces.append(comm)
        return jcc.allreduce(x, comm=comm)

    total = jax.jit(total, static_argnums=1)
    for _ in range(2):
        assert total(jnp.int32(1), world.split(0)) == world.size
    assert len(traces) == 1


def test_send_and_recv_transfer_a_pytree(world):
    several(world)
    if world.rank == 0:
        sent = jcc.send({"a": jnp.arange(5.0), "b": jnp.int8(3)}, dest=1)
        np.testing.assert_array_equal(sent["a"], np.arange(5.0))
    elif world.rank == 1:
        like = {"a": jnp.zeros(5), "b": jnp.int8(0)}
        got = jcc.recv(like, source=0)
        np.testing.assert_array_equal(got["a"], np.arange(5.0))
        assert got["b"] == 3 and got["b"].dtype == jnp.int8


def test_messages_keep_their_order_and_tags(world):
    """One jit on one side, separate eager calls on the other."""
    several(world)
    if world.rank == 0:

        @jax.jit
        def program(x):
            jcc.send(x, dest=1)
            jcc.send(x + 1, dest=1)
            jcc.send(x + 100, dest=1, tag=7)
            return jcc.recv(x, source=1)

        assert program(jnp.float32(1)) == 101 + 2
    elif world.rank == 1:
        like = jnp.float32(0)
        tagged = jcc.recv(like, source=0, tag=7)
        first = jcc.recv(like, source=0)
        second = jcc.recv(like, source=0)
        assert (float(first), float(second), float(tagged)) == (1, 2, 101)
        jcc.send(tagged + second, dest=0)


def test_send_and_recv_alternate_in_a_jitted_loop(world):
    several(world)
    if world.rank > 1:
        return
    other, rounds = 1 - world.rank, 20

    @jax.jit
    def play(x):
        def one(_, x):
            if world.rank == 0:
                x = jcc.send(x, dest=other)
                return jcc.recv(x, source=other)
            x = jcc.recv(x, source=other)
            return jcc.send(x + 1, dest=other)

        return jax.lax.fori_loop(0, rounds, one, x)

    x = play(jnp.zeros(3))
    np.testing.assert_array_equal(x, np.full(3, rounds))


def test_gradient_flows_back_through_send_and_recv(world):
    """A pipeline of two stages: the cotangent is sent back."""
    several(world)
    if world.rank > 1:
        return
    w = jnp.float32(world.rank + 2)  # 2 and 3

    def stage(w):
        if world.rank == 0:
            return 0 * jnp.sum(jcc.send(w * 5.0, dest=1))
        return w * jcc.recv(0 * w, source=0)

    value, slope = jax.jit(jax.value_and_grad(stage))(w)
    assert value == (0 if world.rank == 0 else 30)
    assert slope == (5 * 3 if world.rank == 0 else 10)


def test_ordered_communicator_matches_by_program_order(world):
    """Rank 0 compiles all operations as one program; the others call them one by one."""
    comm = world.ordered()
    x = jnp.arange(3.0) + world.rank

    def steps(x):
        a = jcc.allreduce(x, comm=comm)
        b = jcc.bcast(x * 2, root=world.size - 1, comm=comm)
        c = jcc.allreduce(x - 1, comm=comm)
        return a, b, c

    for _ in range(3):
        a, b, c = jax.jit(steps)(x) if world.rank == 0 else steps(x)
        ranks = np.arange(world.size)
        np.testing.assert_array_equal(a, [(i + ranks).sum() for i in range(3)])
        np.testing.assert_array_equal(b, [2 * (i + world.size - 1) for i in range(3)])
        np.testing.assert_array_equal(c, [(i + ranks - 1).sum() for i in range(3)])


def test_ordered_communicator_matches_scan_with_an_unrolled_loop(world):
    """One rank scans, the others unroll: each calls five operations in order."""
    comm = world.ordered()

    def scanned(x):
        return jax.lax.scan(lambda c, _: (c + 1, jcc.allreduce(c, comm=comm)), x, length=5)[1]

    def unrolled(x):
        return jnp.stack([jcc.allreduce(x + i, comm=comm) for i in range(5)])

    x = jnp.float32(world.rank)
    result = jax.jit(scanned if world.rank == 0 else unrolled)(x)
    base = world.size * (world.size - 1) // 2
    np.testing.assert_array_equal(result, [base + i * world.size for i in range(5)])


def test_ordered_operations_with_unused_results_run(world):
    comm = world.ordered()

    @jax.jit
    def program(x):
        if world.rank == 0:
            jcc.allreduce(x, comm=comm)
            return x
        return x + 0 * jcc.allreduce(x, comm=comm)

    assert program(jnp.float32(4)) == 4
    assert jcc.allreduce(jnp.int32(1), comm=comm) == world.size


def test_sendrecv_accepts_ranks_functions_and_none(world):
    n, rank = world.size, world.rank
    x = jnp.float32(rank)
    ring = jcc.sendrecv(x, dest=(rank + 1) % n, source=(rank - 1) % n)
    assert ring == (rank - 1) % n
    named = jcc.sendrecv(x, dest=lambda r: (r - 1) % n, source=lambda r: (r + 1) % n)
    assert named == (rank + 1) % n
    down = jcc.sendrecv(
        x, dest=rank + 1 if rank + 1 < n else None, source=rank - 1 if rank else None
    )
    assert down == (rank - 1 if rank else 0)


def test_barrier_waits_for_all_ranks(world, ranks):
    import time

    ranks.barrier()
    if world.rank == 0:
        time.sleep(0.3)
    came = time.monotonic()  # all processes of a host have the same clock
    jcc.barrier()
    times = ranks.allgather((came, time.monotonic()))
    assert max(came for came, _ in times) <= min(left for _, left in times)


def test_programs_without_parameters_match_by_launch_order(world):
    """XLA has one launch counter for all programs without parameters."""
    half = world.split(world.rank % 2, 0)

    @jax.jit
    def program():
        return jcc.allreduce(jnp.full(5, world.rank))

    for step in range(3):
        for _ in range(world.rank % 2 + step):
            jax.block_until_ready(jnp.zeros(7))
            jax.block_until_ready(jax.jit(lambda: jcc.allreduce(jnp.ones(5), comm=half))())
        np.testing.assert_array_equal(program(), np.full(5, sum(range(world.size))))

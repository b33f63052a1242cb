"""The functions of `jaxccomp.compat.mpi4jax`, in each rank."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises

from jaxccomp import errors

MPI = pytest.importorskip("mpi4py.MPI")
mpi4jax = pytest.importorskip("jaxccomp.compat.mpi4jax")

SHAPE = (3, 2)
WORLD_RANK = MPI.COMM_WORLD.Get_rank()
HALVES = MPI.COMM_WORLD.Split(WORLD_RANK % 2, -WORLD_RANK)  # ranks in reverse order
COMMS = {"default": None, "world": MPI.COMM_WORLD, "split": HALVES, "alone": MPI.COMM_SELF}

MODES = {
    "eager": lambda function: function,
    "jit": jax.jit,
    "vmap": lambda function: jax.vmap(function),
}


@pytest.fixture(params=COMMS)
def comm(request):
    return COMMS[request.param]


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


@pytest.fixture
def place(comm):
    """The rank in the communicator, and its size."""
    group = MPI.COMM_WORLD if comm is None else comm
    return group.Get_rank(), group.Get_size()


def several(size):
    if size == 1:
        pytest.skip("needs more than one rank")


def values(rank):
    return jnp.arange(6, dtype=jnp.float32).reshape(SHAPE) + 10 * rank


def check(got, expected):
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_array_equal(got, expected)


def stacked(rows, batched):
    """Return the rows of all ranks, under `vmap` behind the batch axis."""
    return jnp.swapaxes(rows, 0, 1) if batched else rows


# --- Values ---------------------------------------------------------------------------------------


def test_allreduce_returns_the_sum(comm, place, mode):
    rank, size = place
    got = mode(lambda x: mpi4jax.allreduce(x, op=MPI.SUM, comm=comm))(values(rank))
    check(got, sum(values(each) for each in range(size)))


def test_scan_returns_the_prefix_sum(comm, place, mode):
    rank, _ = place
    got = mode(lambda x: mpi4jax.scan(x, MPI.SUM, comm=comm))(values(rank))
    check(got, sum(values(each) for each in range(rank + 1)))


def test_allgather_stacks_values_by_rank(comm, place, mode):
    rank, size = place
    got = mode(lambda x: mpi4jax.allgather(x, comm=comm))(values(rank))
    rows = jnp.stack([values(each) for each in range(size)])
    check(got, stacked(rows, mode is MODES["vmap"]))


def test_alltoall_exchanges_blocks(comm, place, mode):
    rank, size = place
    batched = mode is MODES["vmap"]
    blocks = jnp.stack([values(10 * rank + each) for each in range(size)])
    got = mode(lambda x: mpi4jax.alltoall(x, comm=comm))(stacked(blocks, batched))
    check(got, stacked(jnp.stack([values(10 * each + rank) for each in range(size)]), batched))


def test_bcast_returns_the_roots_values(comm, place, mode):
    rank, size = place
    got = mode(lambda x: mpi4jax.bcast(x, size - 1, comm=comm))(values(rank))
    check(got, values(size - 1))


def test_gather_returns_the_operand_on_other_ranks(comm, place, mode):
    rank, size = place
    got = mode(lambda x: mpi4jax.gather(x, size - 1, comm=comm))(values(rank))
    rows = jnp.stack([values(each) for each in range(size)])
    at_root = stacked(rows, mode is MODES["vmap"])
    check(got, at_root if rank == size - 1 else values(rank))


def test_reduce_returns_the_operand_on_other_ranks(comm, place, mode):
    rank, size = place
    got = mode(lambda x: mpi4jax.reduce(x, op=MPI.MAX, root=size - 1, comm=comm))(values(rank))
    check(got, values(size - 1) if rank == size - 1 else values(rank))


def test_scatter_reads_rows_on_the_root_only(comm, place, mode):
    rank, size = place
    batched = mode is MODES["vmap"]
    x = values(rank)
    if rank == size - 1:
        x = stacked(jnp.stack([values(20 + each) for each in range(size)]), batched)
    got = mode(lambda x: mpi4jax.scatter(x, size - 1, comm=comm))(x)
    check(got, values(20 + rank))


def test_barrier_returns_in_every_mode(comm, mode):
    def program(x):
        mpi4jax.barrier(comm=comm)
        return x + 1

    check(mode(program)(values(0)), values(0) + 1)


def test_send_and_recv_exchange_values(comm, place, mode):
    rank, size = place
    several(size)

    def program(x):
        if rank == 0:
            assert mpi4jax.send(x, size - 1, tag=3, comm=comm) is None
            return mpi4jax.recv(x, comm=comm)
        got = mpi4jax.recv(x, 0, tag=3, comm=comm)
        mpi4jax.send(got + 1, 0, comm=comm)
        return got

    if rank in (0, size - 1):
        check(mode(program)(values(rank)), values(0) + (rank == 0))


def test_sendrecv_shifts_values_around_a_ring(comm, place, mode):
    rank, size = place
    after, before = (rank + 1) % size, (rank - 1) % size
    got = mode(lambda x: mpi4jax.sendrecv(x, x, source=before, dest=after, comm=comm))(values(rank))
    check(got, values(before))
    tags = {"sendtag": rank, "recvtag": before}
    got = mode(lambda x: mpi4jax.sendrecv(x, x, before, after, comm=comm, **tags))(values(rank))
    check(got, values(before))


def test_sendrecv_receives_other_shapes(comm, place):
    rank, size = place
    after, before = (rank + 1) % size, (rank - 1) % size
    x, like = (jnp.arange(2 + each, dtype=jnp.float32) for each in (rank, before))
    status = MPI.Status()
    got = jax.jit(
        lambda x, like: mpi4jax.sendrecv(x, like, before, after, comm=comm, status=status)
    )(x, like)
    check(got, np.arange(2.0 + before))
    assert status.Get_source() == before and status.Get_count(MPI.FLOAT) == 2 + before


def test_operations_accept_scalars(comm, place):
    rank, size = place
    check(mpi4jax.allreduce(1, op=MPI.SUM, comm=comm), size)
    check(jax.jit(lambda x: mpi4jax.allgather(x, comm=comm))(rank), np.arange(size))
    check(mpi4jax.bcast(np.float32(rank), root=0, comm=comm), 0)
    check(mpi4jax.gather(rank, root=0, comm=comm), np.arange(size) if rank == 0 else rank)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint64", "complex64", "bool"])
def test_operations_accept_other_dtypes(comm, place, dtype):
    rank, size = place
    x = jnp.asarray([0, 1, rank % 2]).astype(dtype)
    rows = jnp.stack([jnp.asarray([0, 1, each % 2]).astype(dtype) for each in range(size)])
    check(mpi4jax.allgather(x, comm=comm), rows)
    before, after = (rank - 1) % size, (rank + 1) % size
    check(mpi4jax.sendrecv(x, x, before, after, comm=comm), rows[before])
    if dtype != "bool":
        total = mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)
        assert total.dtype == x.dtype
        check(total, rows.sum(0))


# MPI's logical operators return 0 or 1.
OPERATORS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "LAND": np.logical_and,
    "BAND": np.bitwise_and,
    "LOR": np.logical_or,
    "BOR": np.bitwise_or,
    "LXOR": np.logical_xor,
    "BXOR": np.bitwise_xor,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_allreduce_accepts_operators_of_mpi(comm, place, name):
    rank, size = place
    rows = [np.array([0, each % 2, 2, 5 * (each + 1)], np.int32) for each in range(size)]
    if name.startswith("L"):
        expected = OPERATORS[name].reduce([row != 0 for row in rows]).astype(np.int32)
    else:
        expected = OPERATORS[name].reduce(rows)
    got = mpi4jax.allreduce(jnp.asarray(rows[rank]), op=getattr(MPI, name), comm=comm)
    assert got.dtype == jnp.int32
    check(got, expected)


def test_logical_operators_accept_booleans(comm, place):
    rank, size = place
    x = jnp.array([True, rank == 0, False])
    check(mpi4jax.allreduce(x, op=MPI.LAND, comm=comm), [True, size == 1, False])
    check(mpi4jax.allreduce(x, op=MPI.LOR, comm=comm), [True, True, False])


# --- Status and wildcards -------------------------------------------------------------------------


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
def test_recv_fills_the_status(comm, place, traced):
    rank, size = place
    several(size)
    x = values(rank)
    if rank == 1:
        mpi4jax.send(x, 0, tag=7, comm=comm)
    if rank != 0:
        return
    status = MPI.Status()
    receive = jax.jit if traced else lambda function: function
    got = receive(
        lambda x: mpi4jax.recv(x, MPI.ANY_SOURCE, tag=MPI.ANY_TAG, comm=comm, status=status)
    )(x)
    check(got, values(1))
    jax.effects_barrier()
    assert (status.Get_source(), status.Get_tag(), status.Get_error()) == (1, 7, 0)
    assert status.Get_count(MPI.FLOAT) == x.size and not status.Is_cancelled()


def test_sendrecv_fills_the_status(comm, place):
    rank, size = place
    after, before = (rank + 1) % size, (rank - 1) % size
    status = MPI.Status()
    x = values(rank)
    exchange = jax.jit(
        lambda x: mpi4jax.sendrecv(x, x, before, after, sendtag=rank, comm=comm, status=status)
    )
    check(exchange(x), values(before))
    jax.effects_barrier()
    assert (status.Get_source(), status.Get_tag()) == (before, before)


def test_proc_null_sends_nothing_and_returns_the_buffer(comm, place):
    rank, _ = place
    x, none, status = values(rank), MPI.PROC_NULL, MPI.Status()
    mpi4jax.send(x, none, comm=comm)
    check(mpi4jax.recv(x, none, comm=comm, status=status), x)
    assert status.Get_source() == none and status.Get_count(MPI.FLOAT) == 0
    check(mpi4jax.sendrecv(x, x + 1, none, none, comm=comm), x + 1)


def test_sendrecv_with_proc_null_at_the_ends_of_a_line(comm, place):
    rank, size = place
    after = rank + 1 if rank + 1 < size else MPI.PROC_NULL
    before = rank - 1 if rank > 0 else MPI.PROC_NULL
    exchange = jax.jit(lambda x: mpi4jax.sendrecv(x, x, before, after, comm=comm))
    check(exchange(values(rank)), values(max(rank - 1, 0)))


# --- Order ----------------------------------------------------------------------------------------


def test_jitted_and_eager_ranks_match_in_program_order(comm, place):
    """Rank 0 compiles all calls as one program; the others call them one by one."""
    rank, size = place

    def program(x):
        total = mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)
        mpi4jax.barrier(comm=comm)
        first = mpi4jax.bcast(x + 1, 0, comm=comm)
        return total + mpi4jax.allreduce(x, op=MPI.MIN, comm=comm), first

    for _ in range(2):
        total, first = (jax.jit(program) if rank == 0 else program)(values(rank))
        check(total, sum(values(each) for each in range(size)) + values(0))
        check(first, values(0) + 1)


def test_messages_stay_on_their_communicator(comm, place):
    """A message on a duplicate is not received on the original."""
    rank, size = place
    several(size)
    other = (MPI.COMM_WORLD if comm is None else comm).Dup()
    mpi4jax.barrier(comm=other)  # all members use it once
    x = values(rank)
    if rank == 0:
        mpi4jax.send(x + 1, 1, comm=comm)
        mpi4jax.send(x + 2, 1, comm=other)
    elif rank == 1:
        check(mpi4jax.recv(x, 0, comm=other), values(0) + 2)
        check(mpi4jax.recv(x, 0, comm=comm), values(0) + 1)
    other.Free()


@pytest.mark.parametrize("comm", [MPI.COMM_WORLD, HALVES])
def test_hashable_communicators_are_static_arguments(comm):
    wrapped = mpi4jax.HashableMPIType(comm)
    program = jax.jit(lambda x, comm: mpi4jax.allreduce(x, op=MPI.SUM, comm=comm), static_argnums=1)
    check(program(jnp.float32(1), wrapped), comm.Get_size())
    program(jnp.float32(1), mpi4jax.HashableMPIType(comm))
    assert program._cache_size() == 1


# --- Derivatives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
def test_derivatives_of_allreduce_equal_mpi4jax(comm, place, traced):
    rank, size = place
    run = jax.jit if traced else lambda function: function
    x = values(rank)

    def total(x):
        return mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)

    value, slope = run(jax.value_and_grad(lambda x: (3 * total(x)).sum()))(x)
    check(value, (3 * sum(values(each) for each in range(size))).sum())
    check(slope, jnp.full(SHAPE, 3.0))
    out, tangent = run(lambda x: jax.jvp(total, (x,), (jnp.ones_like(x),)))(x)
    check(tangent, jnp.full(SHAPE, float(size)))
    check(out, total(x))
    check(run(lambda x: jax.linear_transpose(total, x)(x)[0])(x), x)

    def transposed(y):
        return jax.linear_transpose(total, y)(y)[0]

    twice = run(
        lambda x: jax.linear_transpose(lambda y: jax.linear_transpose(total, x)(y)[0], x)(x)
    )
    check(twice(x)[0], total(x))
    check(run(jax.vmap(jax.grad(lambda x: total(x).sum())))(x), jnp.ones(SHAPE))
    check(run(transposed)(x), x)
    hessian = run(jax.hessian(lambda x: total(x.sum()) ** 2))(jnp.ones(2))
    check(hessian, jnp.full((2, 2), 2.0 * size))


@pytest.mark.parametrize("recvtag", [MPI.ANY_TAG, 0])
def test_gradient_of_sendrecv_is_sent_back(comm, place, recvtag):
    rank, size = place
    after, before = (rank + 1) % size, (rank - 1) % size

    def loss(x):
        y = mpi4jax.sendrecv(x, x, before, after, recvtag=recvtag, comm=comm)
        return ((rank + 1) * y).sum()

    for run in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.jacrev(loss)):
        check(run(values(rank)), jnp.full(SHAPE, after + 1.0))
    # In forward mode, which mpi4jax does not have, tangents travel with the values.
    check(jax.jacfwd(loss)(jnp.ones(2)), jnp.full(2, rank + 1.0))


def test_operations_without_gradient_in_mpi4jax_have_one(comm, place):
    """The objective is the sum of the ranks' objectives, as for jaxccomp's own operations."""
    rank, size = place
    x, root = values(rank), size - 1

    slope = jax.grad(lambda x: (rank + 1) * mpi4jax.bcast(x, root, comm=comm).sum())(x)
    weight = sum(range(1, size + 1))
    check(slope, jnp.full(SHAPE, float(weight if rank == root else 0)))
    slope = jax.grad(lambda x: (rank + 1) * mpi4jax.allgather(x, comm=comm).sum())(x)
    check(slope, jnp.full(SHAPE, float(weight)))
    slope = jax.jit(jax.grad(lambda x: 5 * mpi4jax.reduce(x, MPI.SUM, root, comm=comm).sum()))(x)
    check(slope, jnp.full(SHAPE, 5.0 if rank == root else 10.0))
    rows = jnp.ones((size, 2)) if rank == root else jnp.ones(2)
    slope = jax.grad(lambda x: (rank + 1) * mpi4jax.scatter(x, root, comm=comm).sum())(rows)
    check(
        slope, np.repeat(np.arange(1.0, size + 1), 2).reshape(size, 2) if rank == root else 0 * rows
    )


# --- Errors and signatures ------------------------------------------------------------------------

X = jnp.ones(3, jnp.float32)


@pytest.mark.parametrize(
    "call,kind,facts",
    [
        (
            lambda c: mpi4jax.allreduce(X, MPI.SUM, comm=c, token=None),
            ValueError,
            ("token=", "0.8"),
        ),
        (lambda c: mpi4jax.allreduce(X, "sum", comm=c), TypeError, ('"op"', "Op", "str")),
        (lambda c: mpi4jax.bcast(X, True, comm=c), TypeError, ('"root"', "integer", "bool")),
        (lambda c: mpi4jax.bcast(X, 99, comm=c), ValueError, ("root=99", "out of range")),
        (lambda c: mpi4jax.send(X, 99, comm=c), ValueError, ("dest=99", "out of range")),
        (lambda c: mpi4jax.barrier(comm="world"), TypeError, ('"comm"', "Intracomm", "str")),
        (
            lambda c: mpi4jax.alltoall(jnp.ones(77), comm=c),
            ValueError,
            ("Alltoall", "(nproc, ...)"),
        ),
        (lambda c: mpi4jax.allreduce(X, MPI.MAXLOC, comm=c), ValueError, ("MAXLOC", "MPI.SUM")),
        (lambda c: mpi4jax.scan(X, MPI.Op.Create(max), comm=c), ValueError, ("allgather",)),
        (lambda c: mpi4jax.allreduce(X, MPI.BAND, comm=c), TypeError, ("'and'", "float32")),
        (
            lambda c: mpi4jax.sendrecv(X, X, MPI.ANY_SOURCE, 0, comm=c),
            ValueError,
            ("MPI.ANY_SOURCE", "recv"),
        ),
        (
            lambda c: jax.grad(lambda x: mpi4jax.allreduce(x, MPI.MAX, comm=c).sum())(X),
            NotImplementedError,
            ("'max'", "no derivative"),
        ),
    ],
)
def test_invalid_arguments_raise_jaxccomp_errors(comm, call, kind, facts):
    with raises(kind, *facts) as caught:
        call(comm)
    assert isinstance(caught.value, errors.JaxccompError)


def test_scatter_requires_a_row_for_each_rank(comm, place):
    rank, size = place
    if rank == 0:
        with raises(ValueError, "Scatter input must have shape", f"{size} rows"):
            mpi4jax.scatter(jnp.ones(size + 1), 0, comm=comm)


def test_a_traced_rank_is_refused(comm):
    with raises(TypeError, '"root"', "abstract tracer", "static_argnums"):
        jax.jit(lambda x, root: mpi4jax.bcast(x, root, comm=comm))(X, 0)


SIGNATURES = {
    "allgather": "x, *, comm, token",
    "allreduce": "x, op, *, comm, token",
    "alltoall": "x, *, comm, token",
    "barrier": "*, comm, token",
    "bcast": "x, root, *, comm, token",
    "gather": "x, root, *, comm, token",
    "has_cuda_support": "",
    "has_sycl_support": "",
    "recv": "x, source, *, tag, comm, status, token",
    "reduce": "x, op, root, *, comm, token",
    "scan": "x, op, *, comm, token",
    "scatter": "x, root, *, comm, token",
    "send": "x, dest, *, tag, comm, token",
    "sendrecv": ("sendbuf, recvbuf, source, dest, *, sendtag, recvtag, comm, status, token"),
}


def test_signatures_equal_mpi4jax():
    assert sorted(SIGNATURES) == mpi4jax.__all__
    for name, expected in SIGNATURES.items():
        parameters, found = inspect.signature(getattr(mpi4jax, name)).parameters.values(), []
        for parameter in parameters:
            if parameter.kind is parameter.KEYWORD_ONLY and "*" not in found:
                found.append("*")
            found.append(parameter.name)
        assert ", ".join(found) == expected, name
    assert inspect.signature(mpi4jax.recv).parameters["source"].default == MPI.ANY_SOURCE
    assert inspect.signature(mpi4jax.recv).parameters["tag"].default == MPI.ANY_TAG
    assert isinstance(mpi4jax.has_cuda_support(), bool) and not mpi4jax.has_sycl_support()

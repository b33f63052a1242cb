"""Mismatches between ranks: an error on every rank that names both sides, and no hang.

Each test has its own communicator: a failed one cannot be used again.
"""

import contextlib
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import patience
import pytest
from golden_errors import raises

import jaxccomp as jcc

colors = itertools.count(100)


@pytest.fixture
def comm(world):
    if world.size == 1:
        pytest.skip("needs more than one rank")
    with jcc.config.override(timeout_seconds=patience.seconds(30)):
        yield world.split(next(colors))


def failure(function, *arguments, may_be_late=False):
    """Return the error text of ``function``, which must fail before its deadline."""
    with pytest.raises(Exception) as caught:  # noqa: B017, PT011 - only the text is checked
        jax.block_until_ready(function(*arguments))
    # ValueError: jit's C++ path raises it for errors of a program that has run before.
    kinds = (jax.errors.JaxRuntimeError, jcc.errors.JaxccompError, ValueError)
    assert isinstance(caught.value, kinds)
    text = str(caught.value)
    if not isinstance(caught.value, jcc.errors.JaxccompError):
        found = jcc.errors.of(caught.value)
        assert found is not None and str(found)[:100] in text, text
        assert found.code and found.code in text, text
    assert may_be_late or not patience.at_deadline(text), text
    return text


def failure_at_a_deadline(function):
    """Return the error text of ``function``, at a short deadline or before."""
    with jcc.config.override(timeout_seconds=1.0):
        return failure(function, may_be_late=True)


@contextlib.contextmanager
def everybody_after(ranks):
    """Ranks leave the block together, also if one of them fails in it."""
    try:
        yield
    finally:
        ranks.barrier()


def x(shape=(4,), dtype=jnp.float32):
    return jnp.ones(shape, dtype)


# name: what rank 0 runs, what the others run, words that every rank's error must have
MISMATCHES = {
    "kind": (
        lambda c: jcc.bcast(x(), comm=c),
        lambda c: jcc.allreduce(x(), comm=c),
        ["bcast", "allreduce"],
    ),
    "kind, same shapes and wire": (
        lambda c: jcc.scan(x(), comm=c),
        lambda c: jcc.exscan(x(), comm=c),
        ["scan", "exscan"],
    ),
    "dtype": (
        lambda c: jcc.allreduce(x(dtype=jnp.int32), comm=c),
        lambda c: jcc.allreduce(x(dtype=jnp.float32), comm=c),
        ["int32", "float32"],
    ),
    "shape": (
        lambda c: jcc.allreduce(x((4,)), comm=c),
        lambda c: jcc.allreduce(x((5,)), comm=c),
        ["16 bytes|[4]", "20 bytes|[5]"],
    ),
    "shape of one size": (
        lambda c: jcc.allgather(x((4, 1)), comm=c),
        lambda c: jcc.allgather(x((2, 2)), comm=c),
        ["[4,1]", "[2,2]"],
    ),
    "root": (
        lambda c: jcc.bcast(x(), root=0, comm=c),
        lambda c: jcc.bcast(x(), root=1, comm=c),
        ["root=0", "root=1"],
    ),
    "reduction": (
        lambda c: jcc.allreduce(x(), "sum", comm=c),
        lambda c: jcc.allreduce(x(), "max", comm=c),
        ["sum", "max"],
    ),
    "codec": (
        lambda c: jcc.bcast(x(), comm=c),
        lambda c: jcc.bcast(x(), codec="bf16", comm=c),
        ["bf16"],
    ),
    "reference": (
        lambda c: jcc.bcast(x(), ref=x(), codec="lossless", comm=c),
        lambda c: jcc.bcast(x(), codec="lossless", comm=c),
        ["with ref"],
    ),
    "counts": (
        lambda c: jcc.allgatherv(
            x((2,) if c.rank == 0 else (1,)), [2] + [1] * (c.size - 1), comm=c
        ),
        lambda c: jcc.allgatherv(x((1,)), [1] * c.size, comm=c),
        ["allgatherv"],
    ),
    "number of leaves": (
        lambda c: jcc.allreduce([x(), x()], comm=c),
        lambda c: jcc.allreduce([x((8,))], comm=c),
        ["allreduce"],
    ),
}


def run_mismatch(comm, name):
    first, rest, words = MISMATCHES[name]
    program = first if comm.rank == 0 else rest
    return jax.jit(lambda: program(comm)), words


def check_text(text, words):
    for word in words:
        assert any(each in text for each in word.split("|")), text
    # The ranks and the lines of both sides.
    assert text.count("test_errors.py:") >= 2, text
    assert text.count("rank") >= 2, text


def test_eager_mismatch_error_names_the_line_of_the_call(comm):
    """Not the line of an earlier call with the same shapes, which JAX has compiled already."""
    line = inspect.currentframe().f_lineno
    jcc.allreduce(x((2,)), comm=comm)
    jcc.allreduce(x((2,)), comm=comm)
    text = failure(lambda: jcc.allreduce(x((2 if comm.rank == 0 else 3,)), comm=comm))
    assert f"test_errors.py:{line + 3}" in text, text
    assert not any(f"test_errors.py:{line + i}" in text for i in (1, 2)), text


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatched_programs_raise_on_every_rank(comm, name):
    """Found before the program runs: an error on every rank."""
    program, words = run_mismatch(comm, name)
    check_text(failure(program), words)


def test_mismatch_error_names_only_the_differing_collectives(comm):
    def program(x):
        y = jcc.allreduce(x, "max", comm=comm)
        z = jcc.allgather(x, comm=comm).sum() if comm.rank == 0 else jcc.scan(x, comm=comm)[0]
        return y * z

    text = failure(jax.jit(program), x())
    check_text(text, ["allgather", "scan"])
    assert "\n    allreduce" not in text, text


def test_program_that_differs_from_an_earlier_one_raises(comm):
    known = jax.jit(lambda x: jcc.allreduce(x, comm=comm))
    jax.block_until_ready(known(x()))
    other = jax.jit(lambda x: jcc.allgather(x, comm=comm))
    text = failure(other if comm.rank == 0 else known, x())
    assert "allreduce" in text and "allgather" in text, text


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_on_an_ordered_communicator_raises(comm, name):
    """Found when operations are matched: a rank that only sends gets the error in a later one."""
    used = comm.ordered()
    program, words = run_mismatch(used, name)

    def all_that_follows():
        jax.block_until_ready(program())
        for _ in range(100):
            jax.block_until_ready(jcc.barrier(comm=used))

    check_text(failure(all_that_follows), words)


@pytest.mark.parametrize("name", ["kind", "dtype", "shape"])
def test_mismatch_without_program_check_raises_at_the_deadline(comm, name):
    """Every rank has an error at its deadline or before."""
    program, words = run_mismatch(comm, name)

    def both():
        jax.block_until_ready(program())
        jax.block_until_ready(jcc.allgather(x(), comm=comm))

    with jcc.config.override(check_programs=False):
        text = failure_at_a_deadline(both)
    if "waits for" not in text:
        check_text(text, words)
    assert "test_errors.py:" in text and "rank" in text, text


def test_different_number_of_operations_raises(comm):
    def program(x):
        y = jcc.allreduce(x, comm=comm)
        return jcc.bcast(y + 1, root=0, comm=comm) if comm.rank == 0 else y

    text = failure(jax.jit(program), x())
    assert "bcast" in text, text


def test_missing_rank_is_named_at_the_deadline(comm, ranks):
    """The errors of the waiting ranks name the missing rank; the late rank gets an error too."""
    late = comm.size - 1
    with everybody_after(ranks):
        if comm.rank != late:
            text = failure_at_a_deadline(jax.jit(lambda: jcc.allreduce(x(), comm=comm)))
            assert "allreduce" in text and "test_errors.py:" in text, text
            assert f"rank {late}" in text, text
    if comm.rank == late:
        again = jax.jit(lambda: jcc.allreduce(x(), comm=comm))
        text = failure(again, may_be_late=True)
        assert "allreduce" in text, text


def test_missing_message_is_named_at_the_deadline(comm, ranks):
    with everybody_after(ranks):
        if comm.rank == 0:
            receive = lambda: jcc.recv(x(), source=1, comm=comm.ordered())  # noqa: E731
            text = failure_at_a_deadline(receive)
            assert "recv" in text and "rank 1" in text, text


def test_recv_of_another_dtype_raises_on_both_ranks(comm, ranks):
    used = comm.ordered()
    with everybody_after(ranks):
        if comm.rank == 0:
            text = failure(lambda: jcc.recv(x(dtype=jnp.int32), source=1, comm=used))
            assert "int32" in text and "float32" in text, text
        elif comm.rank == 1:
            try:  # a sender may finish before the receiver checks the message
                jax.block_until_ready(jcc.send(x(), dest=0, comm=used))
            except jax.errors.JaxRuntimeError as error:
                assert "int32" in str(error) and "float32" in str(error), error


@pytest.mark.parametrize("algorithm", ["chain", "binomial", "scatter_allgather"])
def test_different_delta_bases_of_bcast_raise_on_every_rank(comm, algorithm):
    """Nothing is decoded; every rank's error names the tensor and the ranks."""
    odd = comm.size - 1
    old = np.arange(50_000, dtype=np.float32)
    new = old + 1
    if comm.rank == odd:
        old = old.copy()
        old[31_234] += 1

    def program(new, old):
        how = {"comm": comm, "codec": "lossless", "algorithm": algorithm}
        got = jcc.bcast([x(), new], ref=[x(), old], **how)
        # A rank that only sends does not wait: it gets the error in this operation.
        return jcc.allreduce(got[1].sum(), comm=comm)

    text = failure(jax.jit(program), new, old)
    facts = (
        "tensor 2 of 2 (float32",
        f"rank 0 of '{comm.name}'",
        f"rank {odd}",
        "test_errors.py:",
        "ref=",
    )
    assert all(fact in text for fact in facts), text


def test_different_delta_bases_of_allgather_raise_on_every_rank(comm):
    """The error names the rank of the values."""
    odd = comm.size - 1
    old = np.arange(comm.size * 3000, dtype=np.float32).reshape(comm.size, 3000)
    mine = old[comm.rank] + 1
    if comm.rank == odd:
        old[0, 17] += 1

    def program(mine, old):
        got = jcc.allgather(mine, ref=old, codec="lossless", comm=comm)
        return jcc.allreduce(got.sum(), comm=comm)

    text = failure(jax.jit(program), mine, old)
    assert f"rank 0 of '{comm.name}'" in text and f"rank {odd} of" in text, text


@pytest.mark.parametrize("given", ["other", "none"])
def test_different_delta_bases_of_send_and_recv_raise(comm, ranks, given):
    used = comm.ordered()
    old = np.arange(3000, dtype=np.float32)
    how = {"codec": "delta", "comm": used}
    with everybody_after(ranks):
        if comm.rank == 0:
            ref = None if given == "none" else old + (np.arange(3000) == 9)
            text = failure(lambda: jcc.recv(old, source=1, ref=ref, **how))
            assert "recv" in text and "rank 1" in text, text
            assert ("ref" if given == "none" else "tensor 1 of 1") in text, text
        elif comm.rank == 1:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                jax.block_until_ready(jcc.send(old + 1, dest=0, ref=old, **how))


def test_a_failed_communicator_stays_failed(comm):
    """The next operation raises at once, with the reason."""
    program = MISMATCHES["dtype"][0 if comm.rank == 0 else 1]
    failure(jax.jit(lambda: program(comm)))
    assert failure(jax.jit(lambda: jcc.allgather(x(), comm=comm)))


@pytest.mark.parametrize(
    "call,facts",
    [
        (lambda c: jcc.bcast(x(), root=c.size, comm=c), ("bcast", "root=", "ranks")),
        (lambda c: jcc.bcast(x(), root=-1, comm=c), ("bcast", "root=-1", "ranks")),
        (lambda c: jcc.alltoall(x((c.size + 1, 2)), comm=c), ("alltoall", "axis 0")),
        (lambda c: jcc.allgatherv(x((1,)), [1], comm=c), ("allgatherv", "counts")),
        (
            lambda c: jcc.alltoallv(x((1,)), [[-1] * c.size] * c.size, comm=c),
            ("alltoallv", "counts"),
        ),
        (lambda c: jcc.allreduce(x(dtype=jnp.bool_), comm=c), ("op='sum'", "bool")),
        (
            lambda c: jcc.allreduce(x(dtype=jnp.float8_e5m2), "xor", comm=c),
            ("op='xor'", "float8_e5m2"),
        ),
        (lambda c: jcc.allreduce(x(), "median", comm=c), ("'median'", "'sum'")),
        (lambda c: jcc.bcast(x(), codec="int3", comm=c), ("'int3'", "'int8'")),
        (lambda c: jcc.bcast(x(), ref=x(), comm=c), ("ref=", "codec='lossless'")),
        (lambda c: jcc.bcast(x(), ref=x((5,)), codec="lossless", comm=c), ("ref", "float32[5]")),
        (lambda c: jcc.bcast(x(), algorithm="pigeon", comm=c), ("bcast", "'pigeon'", "'chain'")),
        (lambda c: jcc.bcast(x(), backend="cuda", comm=c), ("'cuda'", "'native'")),
        (lambda c: jcc.send(x(), dest=c.size, comm=c), ("send", "dest=", "ranks")),
        (lambda c: jcc.bcast(x(), comm="world"), ("jaxccomp.Communicator", "'world'")),
        (lambda c: jcc.bcast(x(), comm=jcc.Communicator("far", (0, 1, 99))), ("'far'", "99")),
        (lambda c: jcc.bcast(x(), axis_name="data"), ("'data'", "(none)")),
        (lambda c: jcc.bcast(object(), comm=c), ("bcast", "<object object at")),
    ],
)
def test_invalid_arguments_raise_while_tracing(comm, call, facts):
    with raises(jcc.errors.JaxccompError, facts):
        jax.jit(lambda: call(comm))()


def test_world_works_after_errors_on_other_communicators(world):
    total = jcc.allreduce(jnp.arange(4), comm=world)
    np.testing.assert_array_equal(total, np.arange(4) * world.size)

"""`backend="mpi"`: MPI's own collectives, compared with the engine's."""

import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import patience
import pytest
from golden_errors import raises

import jaxccomp as jcc
from jaxccomp import errors

BACKENDS = ("mpi", "native")


def operations(n):
    """Return by name: the operation, and whether its operand has a row for each rank."""
    root = n - 1
    return {
        "bcast": (partial(jcc.bcast, root=root), False),
        "allreduce": (jcc.allreduce, False),
        "reduce": (partial(jcc.reduce, root=root), False),
        "allgather": (jcc.allgather, False),
        "gather": (partial(jcc.gather, root=root), False),
        "scatter": (partial(jcc.scatter, root=root), True),
        "reduce_scatter": (jcc.reduce_scatter, True),
        "alltoall": (jcc.alltoall, True),
        "scan": (jcc.scan, False),
        "exscan": (jcc.exscan, False),
    }


def values(shape, dtype, rank):
    drawn = np.random.default_rng(rank).integers(1, 4, shape)
    return jnp.asarray(drawn, dtype)  # small integers: exact in every dtype


def same(found, expected):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_every_operation_equals_the_native_backend(world):
    for operation, per_rank in operations(world.size).values():
        rows = (world.size,) if per_rank else ()
        # Each leaf is a collective; one is empty, one is large.
        tree = {
            shape: values((*rows, *shape), dtype, world.rank)
            for shape, dtype in [
                ((3, 5), jnp.int32),
                ((), jnp.float32),
                ((0,), jnp.float32),
                ((70_001,), jnp.float64),
                ((7,), jnp.bfloat16),
            ]
        }
        found, expected = (jax.jit(partial(operation, backend=each))(tree) for each in BACKENDS)
        same(found, expected)
    jax.block_until_ready(jcc.barrier(backend="mpi"))


def test_operations_with_counts_equal_the_native_backend(world):
    n, root = world.size, world.size - 1
    counts = [2, 0, 3, 1, 2, 0, 1, 4][:n]
    matrix = [[(2 * i + 3 * j + 1) % 4 for j in range(n)] for i in range(n)]
    rows = {
        "allgatherv": (jcc.allgatherv, counts, {}, counts[world.rank]),
        "gatherv": (jcc.gatherv, counts, {"root": root}, counts[world.rank]),
        "scatterv": (jcc.scatterv, counts, {"root": root}, sum(counts)),
        "alltoallv": (jcc.alltoallv, matrix, {}, sum(matrix[world.rank])),
        "of nobody": (jcc.allgatherv, [0] * n, {}, 0),
    }
    for operation, given, how, own in rows.values():
        tree = [
            values((own, *shape), dtype, world.rank)
            for shape, dtype in [
                ((3, 5), "int32"),
                ((), "bool"),
                ((0,), "float32"),
                ((7001,), "bfloat16"),
            ]
        ]
        found, expected = (
            jax.jit(partial(operation, counts=given, backend=each, **how))(tree)
            for each in BACKENDS
        )
        same(found, expected)

    def gathered(x, backend):
        """Its derivative is a reduce_scatterv."""
        return (jcc.allgatherv(x, counts, backend=backend) ** 2).sum()

    x = values((counts[world.rank], 4), "float32", world.rank)
    found, expected = (jax.jit(jax.grad(partial(gathered, backend=each)))(x) for each in BACKENDS)
    same(found, expected)


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "min", "max", "and", "or", "xor"])
def test_every_reduction_equals_the_native_backend(world, op):
    bits = op in ("and", "or", "xor")
    integers = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    floats = [] if bits else ["float16", "bfloat16", "float32", "float64"]
    complexes = ["complex64", "complex128"] if op in ("sum", "mean", "prod") else []
    booleans = ["bool"] if bits or op in ("min", "max") else []
    dtypes = (*([] if op == "mean" else integers), *floats, *complexes, *booleans)
    tree = {
        name: values((9,), name, world.rank) - jnp.asarray(1, name)
        for name in dtypes
        if name != "bool"
    }
    tree |= {name: values((9,), name, world.rank + 1) > 1 for name in booleans}
    found, expected = (
        jax.jit(partial(jcc.allreduce, op=op, backend=each))(tree) for each in BACKENDS
    )
    for name in dtypes:
        exact = op != "mean" and name not in ("complex64", "complex128")
        check = (
            np.testing.assert_array_equal
            if exact
            else partial(np.testing.assert_allclose, rtol=0.02)
        )
        check(
            np.asarray(found[name], expected[name].dtype).astype(complex),
            np.asarray(expected[name]).astype(complex),
        )


def test_min_and_max_propagate_nan(world):
    x = jnp.full(3, float(world.rank)).at[1].set(jnp.nan if world.rank == 0 else 1.0)
    for op in ("min", "max"):
        assert np.isnan(np.asarray(jcc.allreduce(x, op=op, backend="mpi"))).tolist() == [0, 1, 0]


def test_mean_of_random_floats_is_close_to_the_native_backend(world):
    x = jax.random.normal(jax.random.key(world.rank), (1000,), jnp.float32)
    halves = x.astype(jnp.bfloat16)
    found, expected = (jcc.allreduce((x, halves), op="mean", backend=each) for each in BACKENDS)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found[1].astype(np.float32), expected[1].astype(np.float32), rtol=0.05, atol=0.02
    )


def test_independent_operations_match_in_any_order(world):
    """Independent operations, whose order in the program differs by rank."""
    n = 6
    numbers = [np.full(50 * i + 1, i + world.rank) for i in range(n)]
    one = jax.jit(lambda xs: [jcc.allreduce(x, backend="mpi") for x in xs])
    for each, x in zip(one(numbers), numbers, strict=True):
        assert (np.asarray(each) == world.size * (x[0] - world.rank) + sum(range(world.size))).all()
    # Threads, each with its own communicator.
    comms = [world.duplicate(f"of thread {i}") for i in range(3)]
    found = {}

    def run(i):
        total = jnp.asarray(i)
        for _ in range(20):
            total = jcc.allreduce(total, op="max", comm=comms[i], backend="mpi") + 1
        found[i] = int(total)

    threads = [threading.Thread(target=run, args=(i,), name=f"caller {i}") for i in range(3)]
    order = threads[:: 1 if world.rank % 2 else -1]
    for thread in order:
        thread.start()
    for thread in order:
        thread.join()
    assert found == {0: 20, 1: 21, 2: 22}
    for comm in comms:
        comm.free()


def test_split_and_ordered_communicators_return_right_values(world):
    half = world.split(world.rank % 2)
    total = jcc.allreduce(jnp.asarray(world.rank), comm=half, backend="mpi")
    assert total == sum(half.processes)
    # Members in a different order than in the world.
    back = world.split(0, key=-world.rank)
    gathered = jcc.allgather(jnp.asarray(world.rank), comm=back, backend="mpi")
    assert gathered.tolist() == list(back.processes) == sorted(back.processes, reverse=True)
    in_order = jcc.bcast(jnp.asarray(world.rank), root=0, comm=world.ordered(), backend="mpi")
    assert in_order == 0


def test_loops_gradients_and_vmap_equal_the_native_backend(world):
    def total(x, backend):
        return jcc.allreduce(x, backend=backend)

    @partial(jax.jit, static_argnums=1)
    def loop(x, backend):
        return jax.lax.fori_loop(0, 10, lambda i, x: total(x, backend) / world.size + i, x)

    x = jnp.arange(4.0) + world.rank
    same(*(loop(x, each) for each in BACKENDS))
    # The other operations are the transposes of these.
    for name in ("bcast", "reduce_scatter", "alltoall", "scan", "exscan"):
        operation, per_rank = operations(world.size)[name]
        y = values((world.size, 3) if per_rank else (3,), jnp.float64, world.rank)

        def loss(y, backend, operation=operation):
            return jnp.sum(operation(y, backend=backend) ** 2)

        same(*(jax.jit(jax.grad(partial(loss, backend=each)))(y) for each in BACKENDS))
        ys = jnp.stack([y, 2 * y])
        same(*(jax.jit(jax.vmap(partial(operation, backend=each)))(ys) for each in BACKENDS))


def test_explain_and_stats_name_the_mpi_backend(world):
    (call,) = jcc.explain(lambda x: jcc.allreduce(x, backend="mpi"))(jnp.ones(3)).calls
    assert call.backend == "mpi" and call.seconds is None
    before = jcc.stats.get().operations.get("allreduce")
    jax.block_until_ready(jcc.allreduce(jnp.ones(3), backend="mpi"))
    after = jcc.stats.get().operations["allreduce"]
    assert after.calls == (before.calls if before else 0) + 1


def test_unsupported_operations_and_options_raise(world):
    with raises(errors.UnknownNameError, "send", "'alltoallv', 'barrier', 'bcast'"):
        jcc.send(jnp.ones(3), dest=0, backend="mpi")
    with raises(errors.InvalidArgumentError, 'backend="mpi"', "codec=None", "'int8'"):
        jcc.allreduce(jnp.ones(3), codec="int8", backend="mpi")
    with raises(errors.InvalidArgumentError, "bcast", 'backend="mpi"', "ref="):
        jcc.bcast(jnp.ones(3), root=0, ref=jnp.ones(3), codec="lossless", backend="mpi")
    with raises(errors.UnknownNameError, "allreduce", "'ring'", "MPI"):
        jcc.allreduce(jnp.ones(3), backend="mpi", algorithm="ring")


def test_ranks_with_different_backends_or_shapes_raise(world):
    """Ranks compare the backend too, before they call MPI."""
    if world.size == 1:
        pytest.skip("needs two ranks that differ")
    apart = world.duplicate("differs")
    backend = "native" if world.rank == 0 else "mpi"
    with raises(jax.errors.JaxRuntimeError, "backend=mpi"):
        jax.block_until_ready(jcc.allreduce(jnp.ones(3), comm=apart, backend=backend))
    late = world.duplicate("shapes")
    with raises(jax.errors.JaxRuntimeError, "allreduce", "float64"):
        jax.block_until_ready(jcc.allreduce(jnp.ones(3 + world.rank), comm=late, backend="mpi"))
    assert jcc.allreduce(jnp.asarray(1), backend="mpi") == world.size  # the world stays usable


def test_log_and_explain_list_calls_of_the_mpi_backend(world):
    function = jax.jit(lambda x: jcc.allreduce(x, backend="mpi"))
    for _ in range(2):
        function(jnp.arange(77, dtype=jnp.int32)).block_until_ready()
    (row,) = [each for each in jcc.stats.log().rows if each.operands == "int32[77]"]
    (call,) = jcc.explain(function)(jnp.arange(77, dtype=jnp.int32)).calls
    assert row.backend == call.backend == "mpi"
    assert row.calls == call.measured_calls == 2


def test_missing_member_is_named_at_the_deadline(world, ranks):
    """MPI was not called, so only this communicator becomes unusable."""
    if world.size == 1:
        pytest.skip("needs two ranks")
    lonely = world.duplicate("lonely")
    last = world.size - 1
    step = jax.jit(lambda x: jcc.allreduce(x, comm=lonely, backend="mpi"))
    compiled = step.lower(jnp.ones(3)).compile()
    ranks.barrier()
    if world.rank == last:
        ranks.barrier()  # the others have got their error
    try:
        with (
            jcc.config.override(timeout_seconds=patience.seconds(0.5)),
            raises(jax.errors.JaxRuntimeError, f"rank {last} of 'world/lonely'"),
        ):
            jax.block_until_ready(compiled(jnp.ones(3)))
    finally:
        if world.rank != last:
            ranks.barrier()
    assert jcc.allreduce(jnp.asarray(1), backend="mpi") == world.size

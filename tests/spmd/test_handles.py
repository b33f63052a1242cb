"""Operations with separate start and wait."""

import gc
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import check_text, raises
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp._api.overlap import run_apart
from jaxccomp._native import engine

N = 4
PLANES = [
    "xla",
    pytest.param("native", marks=pytest.mark.skipif(not engine.available(), reason="")),
]
X = np.arange(N * N * 3, dtype=np.float32).reshape(N, N, 3)
# Arguments of each operation, for rows of (N, 3).
ARGUMENTS = {
    "allgather": {},
    "allgatherv": {"counts": (1, 2, 3, 4)},
    "allreduce": {"op": "max"},
    "allreduce_with_feedback": {
        "op": "mean",
        "residual": np.zeros((N, 3), np.float32),
        "codec": "int8",
    },
    "alltoall": {},
    "alltoallv": {"counts": ((1,) * N,) * N},
    "bcast": {"root": 1},
    "exscan": {},
    "gather": {"root": 2},
    "gatherv": {"counts": (1, 2, 3, 4)},
    "reduce": {"root": 3},
    "reduce_scatter": {"op": "mean"},
    "reduce_scatter_with_feedback": {
        "op": "mean",
        "residual": np.zeros((N, 3), np.float32),
        "codec": "int8",
    },
    "scan": {},
    "scatter": {"root": 1},
    "scatterv": {"counts": (1, 2, 1, 0)},
    "sendrecv": {"dest": (1, 2, 3, 0), "source": (3, 0, 1, 2)},
}


def on_ranks(program, *operands):
    """Returns the results of all ranks, concatenated."""
    mesh = jax.make_mesh((N,), ("i",), (AxisType.Auto,), devices=jax.devices()[:N])
    mapped = jax.shard_map(
        lambda *rows: jax.tree.map(lambda y: y[None], program(*(row[0] for row in rows))),
        mesh=mesh,
        in_specs=P("i"),
        out_specs=P("i"),
        check_vma=False,
    )
    return jax.jit(mapped), operands


def run(program, *operands):
    mapped, operands = on_ranks(program, *operands)
    return jax.tree.map(np.asarray, mapped(*operands))


@pytest.mark.parametrize("name", [*ARGUMENTS, "send", "recv"])
def test_nonblocking_keeps_the_signature(name):
    operation = getattr(jcc, name)
    ours = inspect.signature(jcc.nonblocking(operation))
    assert ours == inspect.signature(operation)


def test_nonblocking_takes_an_operation_not_its_result():
    with pytest.raises(jcc.errors.InvalidArgumentError, match=r"nonblocking\(jaxccomp.allreduce\)"):
        jcc.nonblocking(jcc.allreduce(jnp.ones(3)))


def test_names_of_version_0_1_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"nonblocking\(jaxccomp.allreduce\)"):
        start = jcc.allreduce_start
    np.testing.assert_array_equal(start(jnp.ones(3)).wait(), np.ones(3))
    with pytest.raises(AttributeError, match="barrier2_start"):
        _ = jcc.barrier2_start


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_nonblocking_returns_the_operations_result(name, plane):
    how = {"axis_name": "i", "backend": plane, **ARGUMENTS[name]}

    def program(function, x):
        residual = how.pop("residual", None)
        more = {} if residual is None else {"residual": jnp.asarray(residual)}
        return function(x, **how, **more)

    want = run(lambda x: getattr(jcc, name)(x, **how), X)
    got = run(lambda x: jcc.nonblocking(getattr(jcc, name))(x, **how).wait(), X)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_wait_after_orders_computation_before_the_result():
    def program(x):
        handle = jcc.nonblocking(jcc.allreduce)(x, axis_name="i")
        y = jnp.tanh(x)
        return handle.wait(after=y), y

    total, y = run(program, X)
    np.testing.assert_array_equal(total[0], X.sum(axis=0))
    np.testing.assert_allclose(y, np.tanh(X), rtol=1e-6)
    mapped, operands = on_ranks(program, X)
    assert "optimization_barrier" in str(jax.make_jaxpr(mapped)(*operands))


def test_handle_can_be_carried_through_scan():
    """Each step waits for the previous step's operation."""

    def program(x):
        def step(carry, _):
            x, handle = carry
            total = handle.wait(after=x)
            return (x + 1, jcc.nonblocking(jcc.allreduce)(x, axis_name="i")), total

        carry = (x + 1, jcc.nonblocking(jcc.allreduce)(x, axis_name="i"))
        (_, last), totals = jax.lax.scan(step, carry, None, length=3)
        return totals, last.wait()

    totals, last = run(program, X)
    for k in range(3):
        # The operation before the loop sends x, and the steps send x + 1, x + 2, ...
        np.testing.assert_array_equal(totals[0, k], (X + k).sum(axis=0))
    np.testing.assert_array_equal(last[0], (X + 3).sum(axis=0))


def test_nonblocking_operation_has_the_operations_gradient():
    def loss(x):
        return jnp.sum(jcc.nonblocking(jcc.allreduce)(x, axis_name="i").wait(after=x * 2) ** 2)

    np.testing.assert_array_equal(
        run(jax.grad(loss), X)[0],
        run(jax.grad(lambda x: jnp.sum(jcc.allreduce(x, axis_name="i") ** 2)), X)[0],
    )


def test_second_wait_names_the_call():
    handle = jcc.nonblocking(jcc.allreduce)(jnp.ones(3))
    handle.wait()
    with raises(jcc.errors.InvalidArgumentError, "allreduce of test_handles.py:", "wait()"):
        handle.wait()


def test_unwaited_handle_warns_with_its_line():
    with pytest.warns(RuntimeWarning) as caught:
        jcc.nonblocking(jcc.bcast)(jnp.ones(3))
        gc.collect()
    check_text(str(caught[0].message), "bcast of test_handles.py:")


def test_handle_returned_from_jit_can_be_waited_without_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle = jax.jit(lambda x: jcc.nonblocking(jcc.allreduce)(x))(jnp.ones(3))
        np.testing.assert_array_equal(handle.wait(), np.ones(3))
        gc.collect()


@pytest.mark.parametrize(
    ("start", "facts"),
    [
        (lambda x: jcc.nonblocking(jcc.allreduce)(x, op="avg"), ("allreduce", "'avg'", "'sum'")),
        (lambda x: jcc.nonblocking(jcc.allreduce)(x, codec="int9"), ("'int9'", "'int8'")),
        (lambda x: jcc.nonblocking(jcc.alltoall)(x), ("alltoall", "axis 0", "1", "(3,)")),
    ],
    ids=["op", "codec", "shape"],
)
def test_invalid_arguments_raise_when_the_operation_starts(start, facts):
    with raises(jcc.errors.JaxccompError, facts):
        start(jnp.ones(3))


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("transform", ["none", "grad", "vmap", "scan"])
def test_concurrent_operations_have_the_same_results_and_rules(plane, transform):
    """The last group has a constant and a value of another size, which need no token."""

    def sums(x, apart):
        groups = [[x, 2 * x], [jnp.sin(x)], [jnp.cos(x)[0], np.ones(2, np.float32)]]

        def run(_, values):
            return [jcc.allreduce(v, axis_name="d", backend=plane) for v in values]

        if apart:
            return run_apart(groups, run)
        return [run(0, values) for values in groups]

    def body(x, apart):
        if transform == "grad":
            total = lambda x: sum(v.sum() for group in sums(x, apart) for v in group)  # noqa: E731
            return jax.grad(total)(x)
        if transform == "vmap":
            return jax.vmap(lambda row: sums(jnp.stack([row, row]), apart))(x)
        if transform == "scan":
            return jax.lax.scan(lambda c, row: (c, sums(row[None], apart)), 0, x)[1]
        return sums(x, apart)

    got, expected = (
        jax.jit(
            jax.shard_map(
                lambda x, apart=apart: jax.tree.map(lambda v: v[None], body(x[0], apart)),
                mesh=jax.make_mesh((N,), "d", axis_types=(AxisType.Auto,)),
                in_specs=P("d"),
                out_specs=P("d"),
                check_vma=False,
            )
        )(X)
        for apart in (True, False)
    )
    jax.tree.map(np.testing.assert_array_equal, got, expected)

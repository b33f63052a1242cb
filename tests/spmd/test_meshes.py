"""All kinds of meshes: a subset of devices, permuted, several axes, Explicit, partly manual."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.places import BACKEND
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc

HOW = {"backend": BACKEND}


def everything(x, axes):
    """Runs several operations at once, on a row per rank; results differ by shape and rank."""
    how = {"axis_name": axes, **HOW}
    return {
        "bcast": jcc.bcast(x, root=1, **how)[None],
        "sum": jcc.allreduce(x, **how)[None],
        "rows": jcc.allgather(x, **how)[None],
        "upto": jcc.scan(x, **how)[None],
        "next": jcc.sendrecv(x, lambda r: r ^ 1, **how)[None],
    }


def expected(rows):
    n = len(rows)
    return {
        "bcast": np.stack([rows[1]] * n),
        "sum": np.stack([rows.sum(0)] * n),
        "rows": np.stack([rows] * n),
        "upto": np.cumsum(rows, 0),
        "next": rows[np.arange(n) ^ 1],
    }


def mapped(mesh, axes, check_vma=True):
    spec = P(axes)
    return jax.shard_map(
        lambda x: everything(x[0], axes),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=check_vma,
    )


def rows_of(n):
    return np.random.default_rng(n).integers(-9, 9, (n, 5)).astype(np.float32)


def check(result, rows):
    jax.tree.map(np.testing.assert_array_equal, result, expected(rows))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(
    "devices", [[7, 6, 5, 4, 3, 2, 1, 0], [3, 0, 6, 1], [5, 4], [2, 7, 1, 4, 0, 6]], ids=str
)
def test_operations_work_on_permuted_and_partial_meshes(devices, check_vma):
    mesh = Mesh(np.array(jax.devices())[devices], ("d",))
    rows = rows_of(len(devices))
    check(jax.jit(mapped(mesh, "d", check_vma))(rows), rows)


def test_programs_on_disjoint_meshes_run_concurrently():
    halves = [Mesh(np.array(jax.devices())[part], ("d",)) for part in ([0, 2, 4, 6], [7, 5, 3, 1])]
    functions = [jax.jit(mapped(mesh, "d")) for mesh in halves]
    rows = rows_of(4)
    results = [f(rows + i) for _ in range(5) for i, f in enumerate(functions)]
    for i, result in enumerate(results):
        check(result, rows + i % 2)


def test_programs_on_overlapping_meshes_run_in_sequence():
    """The test does not wait between launches."""
    orders = [[0, 1, 2, 3], [3, 1, 0, 2], [4, 3, 2, 1]]
    functions = [jax.jit(mapped(Mesh(np.array(jax.devices())[o], ("d",)), "d")) for o in orders]
    rows = rows_of(4)
    results = [f(rows + i) for _ in range(5) for i, f in enumerate(functions)]
    for i, result in enumerate(results):
        check(result, rows + i % 3)


@pytest.mark.parametrize("axes", [("a", "b"), ("b", "a"), ("a", "c"), ("c", "b", "a")], ids=str)
def test_tuples_of_axes_form_groups_in_their_order(axes):
    """Ranks are numbered in the order of P(axes); other axes form independent groups."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("a", "b", "c"))
    n = 2 ** len(axes)
    rows = rows_of(n)
    check(jax.jit(mapped(mesh, axes))(rows), rows)


def test_operations_over_one_of_two_axes_form_independent_groups():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    rows = rows_of(8).reshape(2, 4, 5)
    f = jax.shard_map(
        lambda x: jax.tree.map(lambda y: y[None], everything(x[0, 0], "b")),
        mesh=mesh,
        in_specs=P("a", "b"),
        out_specs=P("a", "b"),
    )
    result = jax.jit(f)(rows)
    for i in range(2):
        check(jax.tree.map(lambda y, i=i: y[i], result), rows[i])


def test_operations_work_on_explicit_axes():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
    rows = rows_of(8)
    x = jax.device_put(rows, NamedSharding(mesh, P("d")))
    with jax.set_mesh(mesh):
        check(jax.jit(mapped(mesh, "d"))(x), rows)


def test_operations_work_in_partly_manual_shard_map():
    """shard_map over one of two axes; the compiler handles the other."""
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(AxisType.Auto,) * 2)
    rows = rows_of(4)
    f = jax.shard_map(
        lambda x: everything(x[0], "d"),
        mesh=mesh,
        in_specs=P("d"),
        out_specs=P("d"),
        axis_names={"d"},
    )
    check(jax.jit(f)(rows), rows)


def test_operations_and_gradients_work_inside_a_larger_jitted_program():
    """Sharded operands, computation before and after, and the gradient of all of it."""
    mesh = Mesh(np.array(jax.devices()), ("d",))
    total = jax.shard_map(
        lambda x: jcc.allreduce(x * x, axis_name="d", **HOW),
        mesh=mesh,
        in_specs=P("d"),
        out_specs=P(),
    )

    @jax.jit
    def loss(x):
        return jnp.sum(total(x + 1) * 2)

    x = jnp.arange(8.0)
    value, slope = jax.value_and_grad(loss)(jax.device_put(x, NamedSharding(mesh, P("d"))))
    assert value == 2 * ((np.arange(8) + 1) ** 2).sum()
    np.testing.assert_array_equal(slope, 4 * (np.arange(8) + 1))

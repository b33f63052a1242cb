"""Meshes, pytrees, errors, effects and compilations around the operations."""

import functools

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp._native import engine

N = 8
NATIVE = engine.available()
BACKENDS = ["xla"] + (["native"] if NATIVE else [])
needs_engine = pytest.mark.skipif(not NATIVE, reason="needs the native engine")


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((N,), ("d",), axis_types=(AxisType.Auto,))


def along(mesh, function, **options):
    """Runs `function` in shard_map, on rows of the operands."""
    return jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d"), **options)


def shifted(x, backend):
    """Uses all kinds of exchange; the first term differs by rank."""
    how = {"axis_name": "d", "backend": backend}
    rank = lax.axis_index("d").astype(x.dtype)
    x = jcc.bcast(x * (rank + 1), 2, **how) + x
    return (
        x + jcc.allgather(x, **how)[1] + jcc.lax.ppermute(x, "d", [(0, 1), (1, 0)], backend=backend)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_operations_work_on_permuted_explicit_and_partial_meshes(mesh, backend):
    x = jnp.arange(16.0).reshape(8, 2)
    f = functools.partial(shifted, backend=backend)
    expected = jax.jit(along(mesh, functools.partial(shifted, backend="xla")))(x)
    devices = np.array(jax.devices())
    permuted = Mesh(devices[[3, 0, 7, 1, 6, 2, 5, 4]], ("d",))
    np.testing.assert_array_equal(jax.jit(along(permuted, f))(x), expected)
    explicit = jax.make_mesh((N,), ("d",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(explicit):
        y = jax.jit(along(explicit, f))(jax.device_put(x, P("d")))
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(jax.pmap(f, axis_name="d")(x), expected)
    half = jax.jit(along(mesh_of(devices[4:]), functools.partial(shifted, backend="xla")))(x[:4])
    for some in (devices[4:], devices[[6, 1, 4, 3]]):
        np.testing.assert_array_equal(jax.jit(along(mesh_of(some), f))(x[:4]), half)
    two = Mesh(devices.reshape(2, 4), ("a", "d"))
    y = jax.jit(jax.shard_map(f, mesh=two, in_specs=P(("a", "d")), out_specs=P(("a", "d"))))(x)
    np.testing.assert_array_equal(y[:4], half)
    partly = jax.shard_map(f, mesh=two, in_specs=P("d"), out_specs=P("d"), axis_names={"d"})
    np.testing.assert_array_equal(jax.jit(partly)(x[:4]), half)


def mesh_of(devices):
    return Mesh(devices, ("d",))


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_over_two_axes_with_replicated_operands_equal_jax_lax(backend, check_vma):
    mesh = jax.make_mesh((4, 2), ("d", "e"), axis_types=(AxisType.Auto,) * 2)
    x = jnp.arange(24.0).reshape(8, 3)
    weight = jnp.asarray([1.0, 2.0, 5.0])

    def loss(ops, x, weight):
        def body(x, weight):
            y = ops["mean"](x * weight, "d")
            return ops["sum"]((y * weight).sum(), ("e", "d"))

        return jax.shard_map(
            body, mesh=mesh, in_specs=(P(("d", "e")), P()), out_specs=P(), check_vma=check_vma
        )(x, weight)

    ours = {
        "mean": lambda x, a: jcc.allreduce(x, "mean", axis_name=a, backend=backend),
        "sum": lambda x, a: jcc.allreduce(x, axis_name=a, backend=backend),
    }

    def psum(x, axes):  # jax.lax.psum rejects operands that vary over only some of the axes
        missing = tuple(a for a in axes if check_vma and a not in jax.typeof(x).mat.varying)
        return lax.psum(lax.pcast(x, missing, to="varying") if missing else x, axes)

    theirs = {"mean": lax.pmean, "sum": psum}
    for one, two in zip(
        jax.jit(jax.value_and_grad(functools.partial(loss, ours), argnums=(0, 1)))(x, weight)[1],
        jax.jit(jax.value_and_grad(functools.partial(loss, theirs), argnums=(0, 1)))(x, weight)[1],
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operations_accept_leaves_of_every_kind(mesh, backend):
    tree = {
        "key": jax.random.key(7),
        "int4": jnp.arange(-8, 8).astype(jnp.int4),
        "uint4": jnp.arange(16).astype(jnp.uint4),
        "float8": jnp.linspace(-4, 4, 9).astype(jnp.float8_e4m3fn),
        "float8b": jnp.linspace(-4, 4, 9).astype(jnp.float8_e5m2),
        "nothing": jnp.zeros((0, 4)),
        "zero": jnp.asarray([-0.0, np.nan, np.inf]),
        "bool": jnp.asarray([True, False]),
        "complex": jnp.asarray([1 + 2j, -0.0j]),
        "scalars": (3, 2.5, True, np.float16(1.5)),
        "none": None,
    }
    how = {"axis_name": "d", "backend": backend}

    def bits(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf).ravel().view(np.uint8)

    for check_vma in (False, True):
        calls = {
            "bcast": (P(), lambda t: jcc.bcast(t, 1, **how)),
            "allgather": (P(), lambda t: jcc.allgather(t, **how)),
            "alltoall": (P("d"), lambda t: jcc.alltoall(jcc.allgather(t, **how), **how)),
        }
        for name, (spec, call) in calls.items():
            f = jax.shard_map(
                lambda call=call: call(tree),
                mesh=mesh,
                in_specs=(),
                out_specs=spec,
                check_vma=check_vma,
            )
            result = jax.jit(f)()
            assert jax.tree.structure(result) == jax.tree.structure(tree)
            for leaf, got in zip(jax.tree.leaves(tree), jax.tree.leaves(result), strict=True):
                leaf = jnp.asarray(leaf)
                assert got.dtype == leaf.dtype, name
                copies = {"bcast": 1, "allgather": N, "alltoall": N * N}[name]
                np.testing.assert_array_equal(bits(got), np.tile(bits(leaf), copies))


def test_gradients_work_with_integer_and_unused_leaves(mesh):
    def loss(x, unused, n):
        y = jcc.allreduce({"x": x, "unused": unused, "n": n}, axis_name="d", backend="xla")
        return (y["x"] * y["n"]).sum()

    mapped = jax.shard_map(
        loss, mesh=mesh, in_specs=(P("d"), P("d"), P()), out_specs=P(), check_vma=False
    )
    x, n = jnp.arange(16.0).reshape(8, 2), jnp.arange(2)[None]
    gradient, nothing = jax.jit(jax.grad(mapped, argnums=(0, 1)))(x, x, n)
    np.testing.assert_array_equal(gradient, np.broadcast_to(8.0 * np.arange(2), (8, 2)))
    np.testing.assert_array_equal(nothing, 0)
    jaxpr = str(jax.make_jaxpr(jax.grad(mapped))(x, x, n))
    assert jaxpr.count("jaxccomp_allreduce[") == 2  # values; cotangents of both floating leaves
    with raises(TypeError, "int32", golden=False):
        jax.grad(lambda x: mapped(x, x, n))(x.astype(jnp.int32))


def test_eager_calls_of_one_line_compile_once():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    tree = {"a": jnp.arange(16.0).reshape(8, 2), "n": 3}
    for _ in range(2):
        compiled.clear()
        jcc.allreduce(tree), jcc.bcast(tree, codec="bf16"), jcc.alltoallv(tree["a"], [[8]])
    assert compiled == []


def test_operations_have_the_documented_effects(mesh):
    x = jnp.ones((8, 2))

    def effects(function):
        return {str(e) for e in jax.make_jaxpr(function)(x).effects}

    assert effects(along(mesh, lambda x: jcc.allreduce(x, axis_name="d"), check_vma=False)) == set()
    assert effects(along(mesh, lambda x: jcc.barrier(x, axis_name="d"))) == {"jaxccomp kept"}
    assert effects(lambda x: jcc.allreduce(x, comm=jcc.world())) == set()
    ordered = jcc.world().ordered()
    assert effects(lambda x: jcc.allreduce(x, comm=ordered)) == {"jaxccomp order"}
    assert effects(lambda x: jcc.send(x, 0)) == {"jaxccomp order"}


@pytest.mark.parametrize("ordered", [False, True])
def test_operations_work_in_a_world_of_one_process(ordered):
    comm = jcc.world().ordered() if ordered else jcc.world()
    x = jnp.arange(6.0).reshape(1, 6)
    np.testing.assert_array_equal(jcc.allgather(x, comm=comm), x[None])

    @jax.jit
    def f(x):
        def step(carry, _):
            carry = jcc.allreduce(carry, "mean", comm=comm)
            return carry + jcc.reduce_scatter(carry[None], comm=comm), carry

        return lax.scan(step, jcc.bcast(x, comm=comm), None, length=3)[0].sum()

    np.testing.assert_array_equal(jax.grad(f)(x), 8)
    assert jcc.exscan(3, comm=comm) == 0
    np.testing.assert_array_equal(jcc.alltoallv(x, [[1]], comm=comm), x)
    np.testing.assert_array_equal(jcc.sendrecv(x, 0, 0, comm=comm), x)
    np.testing.assert_array_equal(jcc.sendrecv(x, comm=comm), 0 * x)


def test_communicator_operation_refuses_operands_on_several_devices(mesh):
    x = jax.device_put(jnp.ones((8, 2)), jax.NamedSharding(mesh, P("d")))
    with raises(ValueError, "8 devices", "axis_name="):
        jax.jit(lambda x: jcc.allreduce(x))(x)
    with raises(ValueError, "8 devices", "axis_name="):
        jax.jit(along(mesh, lambda x: jcc.bcast(x, comm=jcc.world())))(x)


ERRORS = {
    "axis": (
        NameError,
        ("bcast", "'q'", "'d'", "axis_name="),
        lambda x: jcc.bcast(x, axis_name="q"),
    ),
    "axis twice": (
        ValueError,
        ("axis_name", "('d', 'd')"),
        lambda x: jcc.bcast(x, axis_name=("d", "d")),
    ),
    "both": (
        ValueError,
        ("axis_name=", "comm="),
        lambda x: jcc.bcast(x, axis_name="d", comm=jcc.world()),
    ),
    "root": (ValueError, ("bcast", "root=8", "0 to 7"), lambda x: jcc.bcast(x, 8, axis_name="d")),
    "negative root": (
        ValueError,
        ("gather", "root=-1", "0 to 7"),
        lambda x: jcc.gather(x, -1, axis_name="d"),
    ),
    "traced root": (
        ValueError,
        ("bcast", "root", "integer", "tracing"),
        lambda x: jcc.bcast(x, x, axis_name="d"),
    ),
    "op": (
        ValueError,
        ("allreduce", "'summ'", "'sum'"),
        lambda x: jcc.allreduce(x, "summ", axis_name="d"),
    ),
    "scan op": (
        ValueError,
        ("scan", "'mean'", "'sum'"),
        lambda x: jcc.scan(x, "mean", axis_name="d"),
    ),
    "codec": (ValueError, ("'zip'", "'raw'"), lambda x: jcc.bcast(x, axis_name="d", codec="zip")),
    "backend": (
        ValueError,
        ("'gloo'", "'xla'"),
        lambda x: jcc.bcast(x, axis_name="d", backend="gloo"),
    ),
    "algorithm": (
        ValueError,
        ("bcast", "'magic'", "'auto'"),
        lambda x: jcc.bcast(x, axis_name="d", algorithm="magic"),
    ),
    "rows": (
        ValueError,
        ("alltoall", "axis 0", "8", "(1, 2)"),
        lambda x: jcc.alltoall(x, axis_name="d"),
    ),
    "scalar": (
        ValueError,
        ("scatter", "axis 0", "8", "()"),
        lambda x: jcc.scatter(1.0, axis_name="d"),
    ),
    "counts": (
        ValueError,
        ("allgatherv", "counts", "(8,)", "[1, 2]"),
        lambda x: jcc.allgatherv(x, [1, 2], axis_name="d"),
    ),
    "count rows": (
        ValueError,
        ("allgatherv", "counts [3, 3,", "3 rows", "(1, 2)"),
        lambda x: jcc.allgatherv(x, [3] * 8, axis_name="d"),
    ),
    "mean": (
        TypeError,
        ("allreduce", "op='mean'", "int64", 'op="sum"'),
        lambda x: jcc.allreduce(x.astype(int), "mean", axis_name="d"),
    ),
    "bool": (
        TypeError,
        ("allreduce", "op='sum'", "bool", "'and', 'or'"),
        lambda x: jcc.allreduce(x > 0, axis_name="d"),
    ),
    "bits": (
        TypeError,
        ("op='xor'", "float64", "'sum'"),
        lambda x: jcc.allreduce(x, "xor", axis_name="d"),
    ),
    "float8": (
        TypeError,
        ("op='xor'", "float8_e5m2", "'sum'"),
        lambda x: jcc.allreduce(x.astype(jnp.float8_e5m2), "xor", axis_name="d"),
    ),
    "key": (
        TypeError,
        ("allreduce", "PRNG", "key<fry>"),
        lambda x: jcc.allreduce(jax.random.key(0), axis_name="d"),
    ),
    "text": (TypeError, ("bcast", "'abc' (str)"), lambda x: jcc.bcast({"a": "abc"}, axis_name="d")),
    "groups": (
        ValueError,
        ("axis_index_groups", "0 to 7", "[[0, 1]]"),
        lambda x: jcc.bcast(x, axis_name="d", axis_index_groups=[[0, 1]]),
    ),
    "send": (
        ValueError,
        ("send", "jaxccomp.sendrecv(x, dest=...)", "jaxccomp.lax.ppermute"),
        lambda x: jcc.send(x, 1, axis_name="d"),
    ),
    "sendrecv": (
        ValueError,
        ("sendrecv", "dest", "8", "1"),
        lambda x: jcc.sendrecv(x, 1, axis_name="d"),
    ),
    "partners": (
        ValueError,
        ("dest", "source", "[7, 0, 1, 2, 3, 4, 5, 6]", "[1, 2, 3, 4, 5, 6, 7, 0]"),
        lambda x: jcc.sendrecv(x, lambda r: (r + 1) % 8, lambda r: (r + 1) % 8, axis_name="d"),
    ),
    "permutation": (
        ValueError,
        ("ppermute", "[(0, 1), (2, 1)]"),
        lambda x: jcc.lax.ppermute(x, "d", [(0, 1), (2, 1)]),
    ),
    "keyword": (
        TypeError,
        ("bcast", "'colour'", "'algorithm'"),
        lambda x: jcc.bcast(x, axis_name="d", colour=1),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_invalid_arguments_along_an_axis_raise_while_tracing(mesh, name):
    kind, facts, call = ERRORS[name]
    with raises(kind, facts):
        jax.make_jaxpr(along(mesh, call))(jnp.ones((8, 2)))


def test_axis_arguments_without_an_axis_are_refused():
    with raises(NameError, "bcast", "'d'", "(none)", "axis_name="):
        jcc.bcast(1.0, axis_name="d")
    with raises(ValueError, 'backend="xla"', "axis_name="):
        jcc.bcast(1.0, backend="xla")
    with raises(ValueError, "axis_index_groups=", "comm.split(color)"):
        jcc.bcast(1.0, axis_index_groups=[[0]])


@needs_engine
def test_lowering_names_the_line_and_aliases_donated_memory():
    def f(x):
        y = jcc.allreduce(x + 1)
        return jcc.allreduce(x), jcc.allreduce(y)

    def aliased(function, **options):
        text = jax.jit(function, **options).lower(jnp.ones(3)).as_text()
        calls = [line for line in text.splitlines() if "@jaxccomp_collective" in line]
        assert all("test_surroundings.py:" in line for line in calls)
        return ["output_operand_alias" in line for line in calls]

    assert aliased(f) == [True, False, True]
    assert aliased(lambda x: jcc.allreduce(x), donate_argnums=0) == [True]


@needs_engine
def test_groups_of_different_sizes_use_the_xla_backend(mesh):
    groups = [[0, 1, 2], [3, 4, 5, 6, 7]]
    f = along(mesh, lambda x: jcc.lax.psum(x, "d", axis_index_groups=groups))
    x = jnp.arange(8.0)
    np.testing.assert_array_equal(f(x), [3] * 3 + [25] * 5)
    with raises(jcc.errors.InvalidArgumentError, "codec='int8'", "axis_index_groups"):
        along(mesh, lambda x: jcc.lax.psum(x, "d", axis_index_groups=groups, codec="int8"))(x)
    with raises(RuntimeError, "allreduce", "('d',)", "size ([3, 5])"):
        along(mesh, lambda x: jcc.lax.psum(x, "d", axis_index_groups=groups, backend="native"))(x)

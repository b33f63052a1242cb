"""jaxccomp.ops along a named axis, compared with definitions in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp._native import engine

N = 8
BACKENDS = ["xla"] + (["native"] if engine.available() else [])
ROOT = 3
ROWS = [2, 0, 3, 1, 2, 0, 1, 4]  # rows of each rank in v-variants
MATRIX = np.random.default_rng(1).integers(0, 3, size=(N, N))
RING = [(r + 1) % N if r != 6 else None for r in range(N)]
REDUCE = {
    "sum": np.sum,
    "mean": np.mean,
    "prod": np.prod,
    "min": np.min,
    "max": np.max,
}


def at_root(value):
    result = np.zeros((N, *value.shape), value.dtype)
    result[ROOT] = value
    return result


def filled(blocks):
    longest = max(map(len, blocks))
    pad = [(0, 0)] * (blocks[0].ndim - 1)
    return np.stack([np.pad(b, [(0, longest - len(b)), *pad]) for b in blocks])


def split(x):
    return filled(np.split(x, np.cumsum(ROWS)[:-1]))


def exchanged(x):
    parts = [np.split(x[i], np.cumsum(MATRIX[i]))[:N] for i in range(N)]
    return filled([np.concatenate([parts[i][j] for i in range(N)]) for j in range(N)])


def moved(x):
    result = np.zeros_like(x)
    for source, destination in enumerate(RING):
        if destination is not None:
            result[destination] = x[source]
    return result


def joined(x):
    return np.concatenate([x[i, : ROWS[i]] for i in range(N)])


def exclusive(x):
    return np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, 0)[:-1]])


# name: (operand's shape on a rank, call, function from all operands to all results)
V = (max(ROWS), 3)
CASES = {
    "bcast": ((5, 3), lambda x, **k: jcc.bcast(x, ROOT, **k), lambda x: np.stack([x[ROOT]] * N)),
    "reduce": ((5, 3), lambda x, **k: jcc.reduce(x, root=ROOT, **k), lambda x: at_root(x.sum(0))),
    "allgather": ((5, 3), jcc.allgather, lambda x: np.stack([x] * N)),
    "gather": ((5, 3), lambda x, **k: jcc.gather(x, ROOT, **k), at_root),
    "scatter": ((N, 3), lambda x, **k: jcc.scatter(x, ROOT, **k), lambda x: x[ROOT]),
    "reduce_scatter": ((N, 3), jcc.reduce_scatter, lambda x: x.sum(0)),
    "reduce_scatter_mean": (
        (N, 3),
        lambda x, **k: jcc.reduce_scatter(x, "mean", **k),
        lambda x: x.mean(0).astype(x.dtype),
    ),
    "alltoall": ((N, 3), jcc.alltoall, lambda x: x.swapaxes(0, 1)),
    "scan": ((5,), jcc.scan, lambda x: np.cumsum(x, 0, x.dtype)),
    "exscan": ((5,), jcc.exscan, exclusive),
    "allgatherv": (
        V,
        lambda x, **k: jcc.allgatherv(x, ROWS, **k),
        lambda x: np.stack([joined(x)] * N),
    ),
    "gatherv": (V, lambda x, **k: jcc.gatherv(x, ROWS, ROOT, **k), lambda x: at_root(joined(x))),
    "scatterv": (
        (sum(ROWS), 3),
        lambda x, **k: jcc.scatterv(x, ROWS, ROOT, **k),
        lambda x: split(x[ROOT]),
    ),
    "alltoallv": (
        (MATRIX.sum(1).max(), 3),
        lambda x, **k: jcc.alltoallv(x, MATRIX, **k),
        exchanged,
    ),
    "sendrecv": ((5, 3), lambda x, **k: jcc.sendrecv(x, RING, **k), moved),
    "barrier": ((5,), jcc.barrier, lambda x: x),
    **{
        f"allreduce_{op}": (
            (5,),
            lambda x, op=op, **k: jcc.allreduce(x, op, **k),
            lambda x, f=f: np.stack([f(x, 0).astype(x.dtype)] * N),
        )
        for op, f in REDUCE.items()
    },
}
NO_DERIVATIVE = {"allreduce_prod", "allreduce_min", "allreduce_max"}


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((N,), ("d",), axis_types=(AxisType.Auto,))


def operand(shape, dtype=np.float32, seed=0):
    values = np.random.default_rng(seed).normal(size=(N, *shape)) * 4
    return jnp.asarray(values.astype(dtype))


def mapped(mesh, function, check_vma, axis="d"):
    """Runs `function` on each rank's row of the operands; returns rows of results."""

    def body(x):
        y = function(jax.tree.map(lambda leaf: leaf[0], x))
        if check_vma:
            y = jax.tree.map(
                lambda leaf: (
                    leaf if jax.typeof(leaf).mat.varying else lax.pcast(leaf, axis, to="varying")
                ),
                y,
            )
        return jax.tree.map(lambda leaf: leaf[None], y)

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P(axis), check_vma=check_vma)


def run(mesh, call, x, **how):
    """Returns the results of all ranks, jitted, with check_vma."""
    return jax.jit(mapped(mesh, lambda x: call(x, axis_name="d", **how), True))(x)


def close(one, two, tolerance=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), one, two
    )


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_values_and_transposes_match_numpy(mesh, name, backend, check_vma):
    shape, call, expected = CASES[name]
    f = mapped(mesh, lambda x: call(x, axis_name="d", backend=backend), check_vma)
    x = operand(shape)
    tree = {"a": x, "b": [(-x).astype(jnp.float16)]}
    if "mean" not in name:
        tree["n"] = x.astype(jnp.int32)
    result = jax.jit(f)(tree)
    assert jax.tree.map(lambda a: a.dtype, result) == jax.tree.map(lambda a: a.dtype, tree)
    close(result["a"], expected(np.asarray(x)))
    close(result["b"][0], expected(np.asarray(tree["b"][0])), 2e-2)
    if "n" in tree:
        np.testing.assert_array_equal(result["n"], expected(np.asarray(tree["n"])))

    floats = {"a": tree["a"], "b": [x[..., :1]]}
    if name in NO_DERIVATIVE:
        with raises(NotImplementedError, "derivative", "jax.lax.stop_gradient", golden=False):
            jax.jvp(f, (floats,), (floats,))
        return
    y, back = jax.vjp(jax.jit(f), floats)
    close(jax.jvp(f, (floats,), (floats,))[1], y)
    w = jax.tree.map(lambda a: operand(a.shape[1:], seed=7), y)
    inner = lambda a, b: sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), a, b)))  # noqa: E731
    np.testing.assert_allclose(inner(y, w), inner(floats, back(w)[0]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_operations_support_vmap_of_some_leaves_and_along_the_axis(mesh, name):
    shape, call, expected = CASES[name]
    x, y = operand(shape), operand(shape, seed=2)
    how = {"axis_name": "d", "backend": "xla"}
    f = mapped(mesh, lambda x: call(x, **how), False)
    batch = {"batched": jnp.stack([x, 2 * x, x - 1], axis=2), "whole": y}
    out = {"batched": 0, "whole": 0}
    result = jax.jit(jax.vmap(f, in_axes=({"batched": 2, "whole": None},), out_axes=out))(batch)
    for i, each in enumerate([x, 2 * x, x - 1]):
        close(result["batched"][i], expected(np.asarray(each)), 1e-4)
        close(result["whole"][i], expected(np.asarray(y)), 1e-4)

    @jax.jit
    def along(x, y):
        return jax.vmap(lambda x: call(x, axis_name="d"), axis_name="d")({"x": x, "y": y})

    result = along(x, y)
    close(result["x"], expected(np.asarray(x)), 1e-4)
    close(result["y"], expected(np.asarray(y)), 1e-4)


@pytest.mark.parametrize("order", [("v", "d"), ("d", "v")])
@pytest.mark.parametrize(
    "name",
    ["allreduce_mean", "bcast", "allgather", "reduce_scatter", "alltoall", "scan", "sendrecv"],
)
def test_operations_over_vmap_and_shard_map_axes_match_numpy(name, order):
    shape, call, expected = CASES[name]
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    x = operand(shape)
    arranged = (
        x.reshape(2, 4, *shape) if order == ("v", "d") else x.reshape(4, 2, *shape).swapaxes(0, 1)
    )
    inner = mapped(mesh, lambda x: call(x, axis_name=order, backend="xla"), False)
    result = jax.jit(jax.vmap(inner, axis_name="v"))(arranged)
    if order == ("d", "v"):
        result = result.swapaxes(0, 1)
    close(result.reshape(N, *result.shape[2:]), expected(np.asarray(x)), 1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", ["bcast", "allreduce_max", "allgather", "reduce_scatter", "alltoall", "scan", "exscan"]
)
def test_operations_in_groups_equal_operations_on_a_smaller_mesh(mesh, name, backend):
    groups = [[6, 0, 3, 5], [1, 2, 4, 7]]
    call = CASES[name][1]
    shape = (4, 3)
    x = operand(shape)
    how = {"axis_name": "d", "axis_index_groups": groups}
    for check_vma in (False, True):
        f = mapped(mesh, lambda x: call(x, backend=backend, **how), check_vma)
        result = jax.jit(f)(x)
        along = jax.jit(jax.vmap(lambda x: call(x, **how), axis_name="d"))(x)
        small = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
        one = jax.jit(mapped(small, lambda x: call(x, axis_name="d", backend="xla"), False))
        for group in groups:
            expected = one(x[np.array(group)])
            close(result[np.array(group)], expected)
            close(along[np.array(group)], expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bit_operations_and_exscan_identities_match_numpy(mesh, backend):
    x = operand((5,), np.int32) * 1000
    flags = x % 3 == 0
    for op, f in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.items():
        result = run(mesh, jcc.allreduce, (x, flags), op=op, backend=backend)
        np.testing.assert_array_equal(result[0][0], f.reduce(np.asarray(x)))
        np.testing.assert_array_equal(result[1][0], f.reduce(np.asarray(flags)))
    for op, value in {"prod": 1, "min": 2**31 - 1, "max": -(2**31), "and": -1, "or": 0}.items():
        result = run(mesh, jcc.exscan, x, op=op, backend=backend)
        np.testing.assert_array_equal(result[0], value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bf16_codec_rounds_within_its_bound_and_keeps_integers(mesh, backend):
    how = {"backend": backend, "codec": "bf16"}
    for name in ("bcast", "allreduce_sum", "allgather", "reduce_scatter", "sendrecv"):
        shape, call, expected = CASES[name]
        x = operand(shape)
        result = np.asarray(run(mesh, call, x, **how))
        exact = expected(np.asarray(x))
        assert np.abs(result - exact).max() <= 2**-6 * np.abs(np.asarray(x)).sum(0).max()
        assert (result != exact).any()
        if name in ("bcast", "allreduce_sum", "allgather"):
            assert (result == result[:1]).all()
    n = jnp.arange(N * 3).reshape(N, 3) + 2**20
    np.testing.assert_array_equal(run(mesh, jcc.bcast, n, root=1, **how)[0], n[1])


@pytest.mark.parametrize("codec", ["fp16", "int8:rounding=stochastic", "int8|lossless", "fp8_e4m3"])
def test_lossy_codecs_are_within_their_bounds_and_equal_on_all_ranks(mesh, codec):
    for name in ("bcast", "allreduce_sum", "allgather"):
        shape, call, expected = CASES[name]
        x = operand(shape)
        result = np.asarray(run(mesh, call, x, backend="native", codec=codec))
        # Each rank that a value passes may encode it once more.
        bound = jcc.codecs.error_bound(codec, x.dtype)
        once = (bound.relative + bound.block) * np.abs(np.asarray(x)).sum(0).max() + bound.absolute
        assert np.abs(result - expected(np.asarray(x))).max() <= (N + 1) * once
        assert (result == result[:1]).all()


@pytest.mark.skipif(not engine.available(), reason="needs the native engine")
def test_eager_calls_are_logged_with_their_own_lines():
    """Also in a shard_map that is not jitted, each call has its own line."""
    mesh = jax.make_mesh((2,), ("lines",), (AxisType.Auto,), devices=np.array(jax.devices()[:2]))

    def program(x):
        x = jcc.allreduce(x, axis_name="lines", backend="native")
        return jcc.allreduce(x, axis_name="lines", backend="native")

    jcc.stats.reset()
    jax.shard_map(program, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(jnp.ones(3))
    assert len({row.where for row in jcc.stats.log().rows}) == 2

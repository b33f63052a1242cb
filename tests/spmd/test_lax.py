"""jaxccomp.lax compared with jax.lax: values and derivatives, in every context."""

import inspect

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
PERM = [(0, 3), (3, 1), (1, 0), (5, 6)]
GROUPS = [[0, 2, 4, 6], [7, 5, 3, 1]]
BACKENDS = ["xla"] + (["native"] if engine.available() else [])

# name: the call, with an operand of shape (8, 16) per device
CASES = {
    "psum": lambda ops, x, **k: ops.psum(x, "d", **k),
    "psum_tree": lambda ops, x, **k: ops.psum({"a": x, "b": [x[0], x[:, 1]]}, "d", **k)["b"][1],
    "psum_groups": lambda ops, x, **k: ops.psum(x, "d", axis_index_groups=GROUPS, **k),
    "pmean": lambda ops, x, **k: ops.pmean(x, "d", **k),
    "pmax": lambda ops, x, **k: ops.pmax(x, "d", **k),
    "pmin": lambda ops, x, **k: ops.pmin(x, "d", **k),
    "all_gather": lambda ops, x, **k: ops.all_gather(x, "d", **k),
    "all_gather_axis": lambda ops, x, **k: ops.all_gather(x, "d", axis=1, **k),
    "all_gather_tiled": lambda ops, x, **k: ops.all_gather(x, "d", axis=-1, tiled=True, **k),
    "all_gather_groups": lambda ops, x, **k: ops.all_gather(x, "d", axis_index_groups=GROUPS, **k),
    "psum_scatter": lambda ops, x, **k: ops.psum_scatter(x, "d", **k),
    "psum_scatter_tiled": lambda ops, x, **k: ops.psum_scatter(
        x, "d", scatter_dimension=1, tiled=True, **k
    ),
    "psum_scatter_groups": lambda ops, x, **k: ops.psum_scatter(
        x, "d", axis_index_groups=GROUPS, tiled=True, **k
    ),
    "all_to_all": lambda ops, x, **k: ops.all_to_all(x, "d", 0, 1, **k),
    "all_to_all_back": lambda ops, x, **k: ops.all_to_all(x.T, "d", 1, 0, **k),
    "all_to_all_tiled": lambda ops, x, **k: ops.all_to_all(x, "d", 1, 0, tiled=True, **k),
    "all_to_all_groups": lambda ops, x, **k: ops.all_to_all(
        x, "d", 0, 0, axis_index_groups=GROUPS, tiled=True, **k
    ),
    "ppermute": lambda ops, x, **k: ops.ppermute(x, "d", PERM, **k),
}
NO_DERIVATIVE = {"pmax", "pmin"}
WRONG_IN_JAX = {"all_to_all", "all_to_all_back"}  # their derivatives fail in jax.lax
NO_VMA_IN_JAX = {"psum_groups"}


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((N,), ("d",), axis_types=(AxisType.Auto,))


@pytest.fixture(scope="module")
def x():
    return jnp.asarray(np.random.default_rng(0).normal(size=(N * 8, 16)), jnp.float32)


def mapped(mesh, function, check_vma):
    """Runs `function` on each device's (8, 16) block; concatenates the results."""

    def body(x):
        y = function(x)
        return lax.pcast(y, "d", to="varying") if not jax.typeof(y).mat.varying and check_vma else y

    def flat(x):
        return body(x)[None]

    return jax.shard_map(flat, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)


def check_transpose(linear, x):
    """Checks <J x, w> = <x, J^T w>."""
    y, back = jax.vjp(jax.jit(linear), x)
    w = jnp.asarray(np.random.default_rng(5).normal(size=y.shape), y.dtype)
    np.testing.assert_allclose((y * w).sum(), (x * back(w)[0]).sum(), rtol=1e-3)


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_equal_jax_lax(mesh, x, name, backend, check_vma):
    if check_vma and name in NO_VMA_IN_JAX:
        pytest.skip("jax.lax does not do this")
    ours = mapped(mesh, lambda x: CASES[name](jcc.lax, x, backend=backend), check_vma)
    theirs = mapped(mesh, lambda x: CASES[name](lax, x), check_vma)
    close = dict(rtol=1e-5, atol=1e-5)
    jitted = jax.jit(theirs)
    expected = jitted(x)
    np.testing.assert_allclose(jax.jit(ours)(x), expected, **close)
    np.testing.assert_allclose(ours(x), expected, **close)
    result = jax.jit(jax.vmap(ours, in_axes=2, out_axes=1))(jnp.stack([x, -2 * x, x + 1], axis=2))
    # One at a time: jax.lax cannot batch some of them.
    each = jnp.stack([expected, jitted(-2 * x), jitted(x + 1)], 1)
    np.testing.assert_allclose(result, each, **close)
    if name in NO_DERIVATIVE:
        with raises(NotImplementedError, name[1:], "jax.lax.stop_gradient", golden=False):
            jax.jvp(ours, (x,), (x,))
        return
    if name in WRONG_IN_JAX:
        check_transpose(ours, x)
        return
    weight = jnp.asarray(np.random.default_rng(1).normal(size=expected.shape), jnp.float32)

    def derivatives(function):
        @jax.jit
        def run(x):
            gradient = jax.grad(lambda x: (weight * jnp.sin(function(x * x))).sum())
            # The second transposes twice.
            return jax.jvp(function, (x,), (x * x,))[1], *jax.jvp(gradient, (x,), (x,))

        return run(x)

    for one, two in zip(derivatives(ours), derivatives(theirs), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [n for n in CASES if "groups" not in n])
def test_values_and_gradients_along_a_vmap_axis_equal_jax_lax(name, x):
    x = x.reshape(N, 8, 16)
    if name == "ppermute":  # jax.lax requires a full permutation there
        CASE = lambda ops, x: ops.ppermute(x, "d", [(i, (i + 3) % N) for i in range(N)])  # noqa: E731
    else:
        CASE = CASES[name]
    ours = jax.vmap(lambda x: CASE(jcc.lax, x), axis_name="d")
    theirs = jax.vmap(lambda x: CASE(lax, x), axis_name="d")
    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-5, atol=1e-5)

    def gradients(function, ops):
        inside = jax.vmap(jax.grad(lambda x: jnp.sin(CASE(ops, x * x)).sum()), axis_name="d")
        outside = jax.grad(lambda x: jnp.sin(function(x * x)).sum())
        return jax.jit(lambda x: (inside(x), outside(x)))(x)

    if name in WRONG_IN_JAX:
        check_transpose(ours, x)
    elif name not in NO_DERIVATIVE:
        for one, two in zip(gradients(ours, jcc.lax), gradients(theirs, lax), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", jcc.lax.__all__)
def test_signatures_start_with_the_parameters_of_jax_lax(name):
    theirs = list(inspect.signature(getattr(lax, name)).parameters.values())
    ours = list(inspect.signature(getattr(jcc.lax, name)).parameters.values())
    for one, two in zip(theirs, ours, strict=False):
        assert (one.name, one.kind, one.default) == (two.name, two.kind, two.default)
    own = ["ref"] if name == "pbroadcast" else []
    more = [p.name for p in ours[len(theirs) :]]
    assert more == [*own, "codec", "cotangent_codec", "backend", "algorithm"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("check_vma", [False, True])
def test_pbroadcast_returns_the_sources_value_and_gradient(mesh, x, backend, check_vma):
    static = mapped(mesh, lambda x: jcc.lax.pbroadcast(x, "d", 5, backend=backend), check_vma)
    traced = mapped(
        mesh,
        lambda x: jcc.lax.pbroadcast(x, "d", jnp.int32(5) * (x.size > 0), backend=backend),
        check_vma,
    )
    for function in (static, jax.jit(static), jax.jit(traced)):
        np.testing.assert_array_equal(function(x)[2], x[40:48])

    def by_psum(x):
        mine = lax.axis_index("d") == 5
        return lax.psum(jnp.where(mine, x, 0 * x), "d")

    weight = jnp.arange(8.0)[:, None, None]
    one = jax.grad(lambda x: (weight * static(x * x)).sum())(x)
    two = jax.grad(lambda x: (weight * mapped(mesh, by_psum, check_vma)(x * x)).sum())(x)
    np.testing.assert_allclose(one, two)


@pytest.mark.parametrize("axes", [("a", "b"), ("b", "a"), ("b",), ("c", "a")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_tuples_of_axes_number_ranks_as_jax_lax(axes, backend, x):
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Auto,) * 3)
    n = 2 ** len(axes)

    def run(ops, **how):
        def body(x):
            parts = [
                ops.psum(x, axes, **how),
                ops.all_gather(x, axes, tiled=True, **how)[:8],
                ops.psum_scatter(
                    ops.all_gather(x, axes, tiled=True, **how), axes, tiled=True, **how
                ),
                ops.all_to_all(x, axes, 0, 0, tiled=True, **how),
            ]
            return sum((i + 1) * part for i, part in enumerate(parts))[None]

        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=P(("a", "b", "c")),
            out_specs=P(("a", "b", "c")),
            check_vma=False,
        )

    del n
    np.testing.assert_allclose(run(jcc.lax, backend=backend)(x), run(lax)(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ppermute_numbers_ranks_like_axis_index(backend):
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def body():
        rank = lax.axis_index(("b", "a"))
        return (
            jcc.lax.ppermute(
                rank, ("b", "a"), [(i, (i + 1) % 8) for i in range(8)], backend=backend
            )[None, None]
            - (rank - 1) % 8
        )

    f = jax.shard_map(body, mesh=mesh, in_specs=(), out_specs=P("a", "b"), check_vma=False)
    np.testing.assert_array_equal(f(), 0)


def test_psum_accepts_constants_bools_and_positional_axes(mesh):
    def body(x):
        return (
            jcc.lax.psum(1, "d"),
            jcc.lax.psum(x > 0, "d"),
            jcc.lax.psum(x, ("d", 0)),
            jcc.lax.pmean(x.astype(jnp.int32), "d"),
            jcc.lax.pmax(x, ("d", 1)),
        )

    x = jnp.arange(16.0).reshape(8, 2)
    f = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False)
    n, positive, total, mean, largest = f(x)
    assert n == 8 and positive.dtype == jnp.int32
    np.testing.assert_array_equal(positive, (x > 0).sum(0)[None])
    np.testing.assert_array_equal(total, x.sum(0))
    np.testing.assert_array_equal(mean, x.mean(0)[None])
    np.testing.assert_array_equal(largest, [15])


def ragged_inputs():
    rng = np.random.default_rng(3)
    sizes = rng.integers(0, 4, size=(N, N))
    starts = np.cumsum(sizes, 1) - sizes
    recv = sizes.T
    places = np.cumsum(recv, 1) - recv  # at rank i, from rank j
    data = rng.normal(size=(N, 28, 3)).astype(np.float32)
    expected = np.full((N, 30, 3), 7, np.float32)
    for i in range(N):
        for j in range(N):
            block = data[j, starts[j, i] : starts[j, i] + sizes[j, i]]
            expected[i, places[i, j] : places[i, j] + recv[i, j]] = block
    output = np.full((N, 30, 3), 7, np.float32)
    return data, output, starts, sizes, places.T, recv, expected


@pytest.mark.parametrize("backend", BACKENDS + ["vmap"])
@pytest.mark.parametrize("check_vma", [False, True])
def test_ragged_all_to_all_returns_blocks_and_gradients(mesh, backend, check_vma):
    *operands, expected = map(jnp.asarray, ragged_inputs())

    def each(*operands):
        how = {} if backend == "vmap" else {"backend": backend}
        return jcc.lax.ragged_all_to_all(*operands, axis_name="d", **how)

    if backend == "vmap":
        f = jax.vmap(each, axis_name="d")
    else:
        f = jax.shard_map(
            lambda *ops: each(*(o[0] for o in ops))[None],
            mesh=mesh,
            in_specs=P("d"),
            out_specs=P("d"),
            check_vma=check_vma,
        )
    np.testing.assert_array_equal(jax.jit(f)(*operands), expected)
    weight = jnp.asarray(np.random.default_rng(4).normal(size=expected.shape))

    def objective(data, output):
        return (weight * f(data, output, *operands[2:])).sum()

    primals = tuple(operands[:2])
    to_data, to_output = jax.grad(objective, argnums=(0, 1))(*primals)
    _, tangent = jax.jvp(objective, primals, (operands[0], operands[1]))
    np.testing.assert_allclose(
        (to_data * operands[0]).sum() + (to_output * operands[1]).sum(), tangent, rtol=1e-4
    )
    if backend != "vmap":
        batched = jax.vmap(f, in_axes=(3, None, None, None, None, None), out_axes=3)
        data = jnp.stack([operands[0], 2 * operands[0]], 3)
        result = batched(data, *operands[1:])
        np.testing.assert_array_equal(result[..., 0], expected)
        shifted = jnp.stack([operands[2]] * 2)  # batched offsets run one after the other
        result = jax.vmap(f, in_axes=(None, None, 0, None, None, None))(
            operands[0], operands[1], shifted, *operands[3:]
        )
        np.testing.assert_array_equal(result[1], expected)


@pytest.mark.parametrize("shape", [(24, 0), (8, 3, 0)])
def test_tiled_operations_accept_empty_blocks(mesh, shape):
    def of(ops):
        gather = lambda x: ops.all_gather(x, "d", tiled=True)  # noqa: E731
        step = jax.shard_map(gather, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        return jax.jit(step)(jnp.zeros(shape))

    assert of(jcc.lax).shape == of(lax).shape


@pytest.mark.skipif(not engine.available(), reason="the algorithms are the engine's")
@pytest.mark.parametrize("algorithm", ["chain", "chain:chunk=4096", "scatter_allgather"])
def test_gradient_works_if_the_transpose_lacks_the_algorithm(mesh, x, algorithm):
    def derivative(**options):
        step = lambda x: jcc.lax.pbroadcast(x, "d", 3, **options).sum()  # noqa: E731
        specs = P("d")
        return jax.jit(
            jax.shard_map(
                jax.grad(step), mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False
            )
        )(x)

    np.testing.assert_array_equal(derivative(algorithm=algorithm), derivative())

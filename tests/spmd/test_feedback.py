"""Reductions with feedback on both planes, with every algorithm, under JAX's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import AxisPlace, pairwise
from golden_errors import raises
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp._native import engine

N = 5
STEPS = 4
ALGORITHMS = ["two_shot", "parameter_server", "hierarchical", "recursive_doubling", "ring"]
WAYS = [{"backend": "xla"}]
if engine.available():
    WAYS += [{"backend": "native", "algorithm": name} for name in ("one_shot", *ALGORITHMS)]
SCATTER_WAYS = [{"backend": "xla"}]
if engine.available():
    SCATTER_WAYS += [{"backend": "native", "algorithm": name} for name in ("direct", "ring")]
needs_engine = pytest.mark.skipif(not engine.available(), reason="needs the native engine")


def gradients(n=N, dtype="float32"):
    """Returns gradients of a few steps for each rank, with a common part."""
    rng = np.random.default_rng(7)
    shapes = {"kernel": (STEPS, 40, 130), "bias": (STEPS, 3)}
    return {
        name: (rng.standard_normal((n, *shape)) + rng.standard_normal(shape)).astype(dtype)
        for name, shape in shapes.items()
    }


def train(how):
    """Returns a program for all steps. It returns the sum of results and the last residual."""

    def program(grads, _):
        start = jax.tree.map(lambda g: jnp.zeros_like(g[0]), grads)

        def step(residual, grads):
            return jcc.allreduce_with_feedback(grads, residual, **how)[::-1]

        residual, reduced = jax.lax.scan(step, start, grads)
        return jax.tree.map(lambda x: x.astype("float32").sum(axis=0), reduced), residual

    return program


@pytest.mark.parametrize(
    "way,codec,op",
    pairwise(WAYS, ["int4:rounding=stochastic", "topk:density=0.05"], ["sum", "mean"]),
    ids=lambda value: value.get("algorithm", "xla") if isinstance(value, dict) else None,
)
def test_delivered_values_and_residuals_sum_to_all_gradients(way, codec, op):
    place = AxisPlace(N, "check_vma")
    grads = gradients()
    # A leading axis of size 1, along which the place concatenates the ranks.
    program = train(place.how | way | {"codec": codec, "op": op})
    reduced, residual = place.run(
        lambda grads, flag: jax.tree.map(
            lambda x: x[None], program(jax.tree.map(lambda g: g[0], grads), flag)
        ),
        jax.tree.map(lambda g: g[:, None], grads),
    )
    merge = {"sum": np.sum, "mean": np.mean}[op]
    for name, g in grads.items():
        expected = merge(g.sum(axis=1) - residual[name][:, 0], axis=0)
        for rank in range(N):
            np.testing.assert_allclose(reduced[name][rank, 0], expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(reduced[name][rank], reduced[name][0])
    # All ranks are on one host, where `hierarchical` does not encode.
    loses = way.get("algorithm") != "hierarchical"
    assert (np.abs(residual["kernel"]).max() > 1e-3) == loses


def on_axis(body, *operands, n=4, check_vma=True):
    mesh = jax.make_mesh((n,), ("d",), (AxisType.Auto,), devices=np.array(jax.devices()[:n]))
    sharded = jax.shard_map(
        lambda *rows: jax.tree.map(lambda x: x[None], body(*(x[0] for x in rows))),
        mesh=mesh,
        in_specs=P("d"),
        out_specs=P("d"),
        check_vma=check_vma,
    )
    return jax.jit(sharded)(*operands)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=["xla", "last"])
def test_feedback_supports_other_floating_dtypes(way, dtype):
    grads = jnp.asarray(gradients(4)["kernel"], dtype)[:, 0]

    def body(x):
        start = jnp.full_like(x, 0.5)
        return jcc.allreduce_with_feedback(x, start, "mean", codec="int4", axis_name="d", **way)

    reduced, residual = on_axis(body, grads)
    assert reduced.dtype == residual.dtype == grads.dtype
    expected = np.mean(np.float64(grads) + 0.5 - np.float64(residual), axis=0)
    unit = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.float64(reduced[0]), expected, rtol=8 * unit, atol=8 * unit)


@pytest.mark.parametrize("name", ["allreduce_with_feedback", "reduce_scatter_with_feedback"])
def test_missing_op_means_mean_and_warns(name):
    x = jnp.ones((4, 4, 4))

    def body(x, *op):
        return getattr(jcc, name)(x, jnp.zeros_like(x), *op, codec="bf16", axis_name="d")[0]

    with pytest.warns(DeprecationWarning, match='op="mean"') as warned:
        implicit = jax.vmap(body, axis_name="d")(x)
    assert warned[0].filename == __file__
    explicit = jax.vmap(lambda x: body(x, "mean"), axis_name="d")(x)
    np.testing.assert_array_equal(implicit, explicit)


@needs_engine
@pytest.mark.parametrize("algorithm", ["one_shot", *ALGORITHMS])
def test_feedback_sends_no_more_than_allreduce(algorithm):
    x = jnp.asarray(gradients(4)["kernel"][:, 0])
    how = {"op": "mean", "codec": "topk:density=0.05", "axis_name": "d", "algorithm": algorithm}

    def sent(function):
        jcc.stats.reset()
        result = jax.block_until_ready(on_axis(function, x))
        operations = jcc.stats.get().operations
        assert set(operations) == {"allreduce"}
        return result, operations["allreduce"].sent_bytes

    (reduced, _), ours = sent(lambda x: jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how))
    expected, plain = sent(lambda x: jcc.allreduce(x, **how))
    assert ours == plain > 0
    np.testing.assert_array_equal(reduced, expected)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=["xla", "last"])
def test_feedback_works_in_axis_index_groups(way):
    x = jnp.asarray(gradients(4)["kernel"][:, 0])
    groups = [[0, 3], [2, 1]]

    def body(x):
        how = {"op": "mean", "codec": "onebit", "axis_name": "d", "axis_index_groups": groups}
        return jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how, **way)

    reduced, residual = on_axis(body, x)
    for group in groups:
        for rank in group:
            expected = np.mean([x[i] - residual[i] for i in group], axis=0)
            np.testing.assert_allclose(reduced[rank], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=["xla", "last"])
def test_nonfinite_values_do_not_enter_residuals(way):
    x = jnp.ones((4, 2000)).at[1, 5].set(jnp.inf)

    def body(x):
        how = {"op": "mean", "codec": "int8", "axis_name": "d"}
        return jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how, **way)

    reduced, residual = on_axis(body, x)
    assert not np.isfinite(reduced[:, 5]).any()
    assert np.isfinite(residual).all()


def test_feedback_along_a_vmap_axis_is_exact():
    x = jnp.asarray(gradients(4)["kernel"][:, 0])

    def body(x, residual):
        return jcc.allreduce_with_feedback(x, residual, "sum", codec="onebit", axis_name="d")

    reduced, residual = jax.vmap(body, axis_name="d")(x, jnp.ones_like(x))
    np.testing.assert_allclose(reduced[2], x.sum(axis=0) + 4, rtol=1e-5, atol=1e-5)
    assert not residual.any()


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=["xla", "last"])
def test_feedback_supports_vmap_over_another_axis(way):
    x = jnp.asarray(gradients(4)["kernel"])  # the steps are a batch here

    def one(x):
        how = {"op": "mean", "codec": "int4:block=32", "axis_name": "d"}
        return jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how, **way)

    reduced, residual = on_axis(lambda x: jax.vmap(one, in_axes=1, out_axes=1)(x), x)
    expected = np.mean(x - residual, axis=0)
    np.testing.assert_allclose(reduced[0], expected, rtol=1e-4, atol=1e-5)
    assert np.abs(residual).max() > 1e-3


def test_feedback_over_a_mesh_axis_and_a_vmap_axis_is_exact():
    x = jnp.asarray(gradients(4)["kernel"])

    def one(x):
        how = {"op": "mean", "codec": "int4", "axis_name": ("d", "batch")}
        return jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how)

    reduced, residual = on_axis(lambda x: jax.vmap(one, axis_name="batch")(x), x)
    np.testing.assert_allclose(reduced[0, 0], x.mean(axis=(0, 1)), rtol=1e-4, atol=1e-5)
    assert not residual.any()


def test_reductions_with_feedback_refuse_derivatives():
    def loss(x):
        how = {"op": "mean", "codec": "int8", "axis_name": "d"}
        return jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how)[0].sum()

    x = jnp.ones((4, 8))
    with raises(
        jcc.errors.NotDifferentiableError, "allreduce_with_feedback", "jax.lax.stop_gradient"
    ):
        on_axis(jax.grad(loss), x)
    zeros = on_axis(jax.grad(lambda x: loss(jax.lax.stop_gradient(x))), x)
    assert not zeros.any()


# --- reduce_scatter -----------------------------------------------------------------------------


def test_reduce_scatter_cases_cover_all_algorithms():
    if not engine.available():
        pytest.skip("needs the native engine")
    rows = engine.load().describe()["algorithms"]
    known = {row["name"] for row in rows if row["collective"] == "reduce_scatter"}
    assert known == {way["algorithm"] for way in SCATTER_WAYS if "algorithm" in way}


def scattered(way, op, codec, check_vma, n=4):
    """Returns results and residuals of steps of reduce_scatter_with_feedback, and the operands."""
    rng = np.random.default_rng(3)
    rows = {
        "kernel": rng.standard_normal((n, STEPS, n, 41, 70)).astype("float32"),
        "bias": rng.standard_normal((n, STEPS, n)).astype("float32"),
    }

    def body(*leaves):
        grads = dict(zip(rows, leaves, strict=True))

        def step(residual, grads):
            how = {"op": op, "codec": codec, "axis_name": "d", **way}
            return jcc.reduce_scatter_with_feedback(grads, residual, **how)[::-1]

        start = jax.tree.map(lambda g: jnp.zeros_like(g[0]), grads)
        residual, reduced = jax.lax.scan(step, start, grads)
        return jax.tree.map(lambda x: x.sum(axis=0), reduced), residual

    return rows, *on_axis(body, *rows.values(), n=n, check_vma=check_vma)


@pytest.mark.parametrize(
    "way,codec,op",
    pairwise(
        SCATTER_WAYS, ["bf16:rounding=stochastic", "int4", "topk:density=0.05"], ["sum", "mean"]
    ),
    ids=lambda value: value.get("algorithm", "xla") if isinstance(value, dict) else None,
)
def test_reduce_scatter_delivers_all_values_with_residuals(way, codec, op):
    rows, reduced, residual = scattered(way, op, codec, check_vma=op == "sum")
    merge = {"sum": np.sum, "mean": np.mean}[op]
    for name, x in rows.items():
        expected = merge(x.sum(axis=1) - residual[name], axis=0)  # row j belongs to rank j
        np.testing.assert_allclose(reduced[name], expected, rtol=1e-4, atol=1e-4)
        assert residual[name].shape == x[:, 0].shape
    assert np.abs(residual["kernel"]).max() > 1e-3


@pytest.mark.parametrize("way", SCATTER_WAYS, ids=lambda way: way.get("algorithm", "xla"))
def test_reduce_scatter_results_are_equal_with_and_without_feedback(way):
    x = jnp.asarray(gradients(4)["kernel"])  # the steps are the rows here

    def body(x):
        how = {"codec": "int4", "axis_name": "d", "op": "mean", **way}
        both = jcc.reduce_scatter_with_feedback(x, jnp.zeros_like(x), **how)
        return *both, jcc.reduce_scatter(x, **how)

    reduced, _, plain = on_axis(body, x)
    np.testing.assert_array_equal(reduced, plain)


@pytest.mark.parametrize("way", SCATTER_WAYS[:2], ids=["xla", "direct"][: len(SCATTER_WAYS[:2])])
def test_reduce_scatter_supports_groups_vmap_and_bfloat16(way):
    x = jnp.asarray(gradients(4)["kernel"][:, :2], "bfloat16")
    groups = [[0, 3], [2, 1]]

    def one(x):  # (2, 40)
        how = {"op": "mean", "codec": "int8", "axis_name": "d", "axis_index_groups": groups, **way}
        return jcc.reduce_scatter_with_feedback(x, jnp.zeros_like(x), **how)

    reduced, residual = on_axis(lambda x: jax.vmap(one, in_axes=2, out_axes=(1, 2))(x), x)
    assert reduced.shape == (4, 40, 130) and residual.shape == x.shape
    assert reduced.dtype == residual.dtype == x.dtype
    for group in groups:
        for place, rank in enumerate(group):
            expected = np.mean([np.float32(x[i] - residual[i])[place] for i in group], axis=0)
            np.testing.assert_allclose(np.float32(reduced[rank]), expected, rtol=2**-5, atol=2**-5)


def test_reduce_scatter_along_a_vmap_axis_is_exact_with_integer_leaves():
    x = {"a": jnp.arange(32.0).reshape(4, 4, 2), "n": jnp.arange(16).reshape(4, 4)}

    def body(x):
        residual = {"a": jnp.ones((4, 2)), "n": None}
        how = {"op": "sum", "codec": "onebit", "axis_name": "d"}
        return jcc.reduce_scatter_with_feedback(x, residual, **how)

    reduced, residual = jax.vmap(body, axis_name="d")(x)
    np.testing.assert_array_equal(reduced["a"], x["a"].sum(axis=0) + 4)
    np.testing.assert_array_equal(reduced["n"], x["n"].sum(axis=0))
    assert not residual["a"].any() and residual["n"] is None


def test_reduce_scatter_with_feedback_refuses_invalid_arguments():
    x = jnp.ones((4, 4, 8))

    def call(residual, op="mean"):
        how = {"codec": "int8", "axis_name": "d"}
        return lambda x: jcc.reduce_scatter_with_feedback(x, residual(x), op, **how)[0]

    name = "reduce_scatter_with_feedback"
    with raises(jcc.errors.UnknownNameError, name, "'max'", "'mean', 'sum'"):
        on_axis(call(jnp.zeros_like, "max"), x)
    facts = ("float64[4, 8]", "float64[8]", "zeros_like")
    with raises(jcc.errors.InvalidArgumentError, name, facts):
        on_axis(call(lambda x: jnp.zeros(8)), x)
    with raises(jcc.errors.InvalidArgumentError, "reduce_scatter", "axis 0", "4", "(3, 8)"):
        on_axis(lambda x: call(jnp.zeros_like)(x[:3]), x)
    with raises(jcc.errors.NotDifferentiableError, name, "jax.lax.stop_gradient"):
        on_axis(jax.grad(lambda x: call(jnp.zeros_like)(x).sum()), x)

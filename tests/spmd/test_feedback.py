"""`allreduce_with_feedback` on both planes, with every algorithm, under JAX's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import AxisPlace
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
needs_engine = pytest.mark.skipif(not engine.available(), reason="needs the native engine")


def gradients(n=N, dtype="float32"):
    """Some steps of each rank, which have a part in common."""
    rng = np.random.default_rng(7)
    shapes = {"kernel": (STEPS, 40, 130), "bias": (STEPS, 3)}
    return {
        name: (rng.standard_normal((n, *shape)) + rng.standard_normal(shape)).astype(dtype)
        for name, shape in shapes.items()
    }


def train(how):
    """A program that takes all steps and gives the sum of their results, and the last residual."""

    def program(grads, _):
        start = jax.tree.map(lambda g: jnp.zeros_like(g[0]), grads)

        def step(residual, grads):
            return jcc.allreduce_with_feedback(grads, residual, **how)[::-1]

        residual, reduced = jax.lax.scan(step, start, grads)
        return jax.tree.map(lambda x: x.astype("float32").sum(axis=0), reduced), residual

    return program


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("codec", ["int4:rounding=stochastic", "topk:density=0.05"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.get("algorithm", "xla"))
def test_nothing_is_lost(way, codec, op):
    place = AxisPlace(N, "check_vma")
    grads = gradients()
    # A leading axis of one, along which the place joins the ranks.
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
    # All ranks are on one host, within which `hierarchical` encodes nothing.
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
def test_other_floats(way, dtype):
    grads = jnp.asarray(gradients(4)["kernel"], dtype)[:, 0]

    def body(x):
        start = jnp.full_like(x, 0.5)
        return jcc.allreduce_with_feedback(x, start, codec="int4", axis_name="d", **way)

    reduced, residual = on_axis(body, grads)
    assert reduced.dtype == residual.dtype == grads.dtype
    expected = np.mean(np.float64(grads) + 0.5 - np.float64(residual), axis=0)
    unit = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.float64(reduced[0]), expected, rtol=8 * unit, atol=8 * unit)


@needs_engine
@pytest.mark.parametrize("algorithm", ["one_shot", *ALGORITHMS])
def test_no_more_travels_than_for_an_allreduce(algorithm):
    x = jnp.asarray(gradients(4)["kernel"][:, 0])
    how = {"codec": "topk:density=0.05", "axis_name": "d", "algorithm": algorithm}

    def sent(function):
        jcc.stats.reset()
        result = jax.block_until_ready(on_axis(function, x))
        operations = jcc.stats.get().operations
        assert set(operations) == {"allreduce"}
        return result, operations["allreduce"].sent_bytes

    (reduced, _), ours = sent(lambda x: jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how))
    expected, plain = sent(lambda x: jcc.allreduce(x, "mean", **how))
    assert ours == plain > 0
    np.testing.assert_array_equal(reduced, expected)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=["xla", "last"])
def test_groups(way):
    x = jnp.asarray(gradients(4)["kernel"][:, 0])
    groups = [[0, 3], [2, 1]]

    def body(x):
        how = {"codec": "onebit", "axis_name": "d", "axis_index_groups": groups}
        return jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how, **way)

    reduced, residual = on_axis(body, x)
    for group in groups:
        for rank in group:
            expected = np.mean([x[i] - residual[i] for i in group], axis=0)
            np.testing.assert_allclose(reduced[rank], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=["xla", "last"])
def test_what_is_not_finite_leaves_no_trace(way):
    x = jnp.ones((4, 2000)).at[1, 5].set(jnp.inf)

    def body(x):
        how = {"codec": "int8", "axis_name": "d"}
        return jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how, **way)

    reduced, residual = on_axis(body, x)
    assert not np.isfinite(reduced[:, 5]).any()
    assert np.isfinite(residual).all()


def test_along_a_vmap_axis_nothing_is_lost():
    x = jnp.asarray(gradients(4)["kernel"][:, 0])

    def body(x, residual):
        return jcc.allreduce_with_feedback(x, residual, "sum", codec="onebit", axis_name="d")

    reduced, residual = jax.vmap(body, axis_name="d")(x, jnp.ones_like(x))
    np.testing.assert_allclose(reduced[2], x.sum(axis=0) + 4, rtol=1e-5, atol=1e-5)
    assert not residual.any()


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=["xla", "last"])
def test_batched_over_another_axis(way):
    x = jnp.asarray(gradients(4)["kernel"])  # of which the steps are a batch here

    def one(x):
        how = {"codec": "int4:block=32", "axis_name": "d"}
        return jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how, **way)

    reduced, residual = on_axis(lambda x: jax.vmap(one, in_axes=1, out_axes=1)(x), x)
    expected = np.mean(x - residual, axis=0)
    np.testing.assert_allclose(reduced[0], expected, rtol=1e-4, atol=1e-5)
    assert np.abs(residual).max() > 1e-3


def test_over_a_mesh_and_a_vmap_axis():
    x = jnp.asarray(gradients(4)["kernel"])

    def one(x):
        how = {"codec": "int4", "axis_name": ("d", "batch")}
        return jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how)

    reduced, residual = on_axis(lambda x: jax.vmap(one, axis_name="batch")(x), x)
    np.testing.assert_allclose(reduced[0, 0], x.mean(axis=(0, 1)), rtol=1e-4, atol=1e-5)
    assert not residual.any()


def test_has_no_derivative():
    def loss(x):
        how = {"codec": "int8", "axis_name": "d"}
        return jcc.allreduce_with_feedback(x, jnp.zeros_like(x), **how)[0].sum()

    x = jnp.ones((4, 8))
    with pytest.raises(jcc.errors.NotDifferentiableError, match="stop_gradient"):
        on_axis(jax.grad(loss), x)
    zeros = on_axis(jax.grad(lambda x: loss(jax.lax.stop_gradient(x))), x)
    assert not zeros.any()

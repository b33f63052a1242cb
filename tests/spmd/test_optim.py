"""Gradients reduced with error feedback, with optimisers of optax."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp._native import engine
from jaxccomp.optim import _policy

optax = pytest.importorskip("optax")
pytestmark = pytest.mark.skipif(not engine.available(), reason="needs the native engine")

N = 4
CODECS = ["onebit", "topk:density=0.05", "randomk:density=0.1", "int4", "int8:rounding=stochastic"]


def on_ranks(function, *operands, n=N, check_vma=True):
    """Runs `function` on `n` ranks with row r of the operands; returns results as rows."""
    mesh = jax.make_mesh(
        (n,), ("d",), axis_types=(AxisType.Auto,), devices=np.array(jax.devices()[:n])
    )

    def body(*rows):
        results = function(*jax.tree.map(lambda x: x[0], rows))
        return jax.tree.map(lambda x: x[None], results)

    sharded = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)
    return jax.jit(sharded)(*operands)


def gradients(steps, dtype="float32"):
    """Returns gradients of N ranks and some steps: a pytree with large and small leaves."""
    keys = jax.random.split(jax.random.key(3), 3)
    shapes = {"kernel": (3000,), "bias": (7,), "scale": ()}
    return {
        name: jax.random.normal(key, (N, steps, *shape), dtype)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def zeros(grads):
    return jax.tree.map(jnp.zeros_like, grads)


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("codec", CODECS)
def test_delivered_values_and_residuals_sum_to_all_gradients(codec, op):
    grads = gradients(steps=6)

    def body(grads):
        step = functools.partial(jcc.allreduce_with_feedback, op=op, codec=codec, axis_name="d")
        start = jax.tree.map(lambda g: jnp.zeros_like(g[0]), grads)
        residual, reduced = jax.lax.scan(lambda r, g: step(g, r)[::-1], start, grads)
        return jax.tree.map(lambda x: x.sum(axis=0), reduced), residual

    reduced, residual = on_ranks(body, grads)
    merge = {"sum": np.sum, "mean": np.mean}[op]
    for name in grads:
        expected = merge(np.sum(grads[name], axis=1) - residual[name], axis=0)
        for rank in range(N):
            np.testing.assert_allclose(reduced[name][rank], expected, rtol=1e-4, atol=1e-4)
    assert np.abs(residual["kernel"]).max() > 1e-3


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_feedback_step_equals_allreduce_and_residual_of_the_codec(dtype, check_vma):
    grads = jax.tree.map(lambda g: g[:, 0], gradients(1, dtype))
    residual = jax.tree.map(lambda g: (g * 0.25).astype(dtype), grads)
    how = {"codec": "int4", "axis_name": "d"}

    def body(grads, residual):
        p = jax.tree.map(jnp.add, grads, residual)
        expected = jcc.allreduce(p, "mean", **how), jcc.allgather(p, **how)
        return jcc.allreduce_with_feedback(grads, residual, "mean", **how), expected, p

    (reduced, residual), (mean, decoded), p = on_ranks(body, grads, residual, check_vma=check_vma)
    unit = float(jnp.finfo(dtype).eps)
    for name in grads:
        assert reduced[name].dtype == residual[name].dtype == jnp.dtype(dtype)
        np.testing.assert_allclose(
            np.float64(reduced[name]), np.float64(mean[name]), rtol=2 * unit, atol=2 * unit
        )
        own = np.stack([decoded[name][rank, rank] for rank in range(N)])
        lost = np.float64(p[name]) - np.float64(own)
        np.testing.assert_allclose(np.float64(residual[name]), lost, rtol=unit, atol=unit)


@pytest.mark.parametrize("codec", [None, "lossless", "raw|lossless"])
def test_a_lossless_codec_leaves_no_residual(codec):
    grads = jax.tree.map(lambda g: g[:, 0], gradients(1))

    def body(grads):
        old = jax.tree.map(jnp.ones_like, grads)
        new = jcc.allreduce_with_feedback(grads, old, "mean", codec=codec, axis_name="d")
        return new, jcc.allreduce(jax.tree.map(jnp.add, grads, old), "mean", axis_name="d")

    (reduced, residual), expected = on_ranks(body, grads)
    for name in grads:
        np.testing.assert_array_equal(reduced[name], expected[name])
        assert not residual[name].any()


def test_feedback_works_in_axis_index_groups():
    x = jax.random.normal(jax.random.key(0), (N, 500))
    groups = [[0, 3], [2, 1]]

    def body(x):
        return jcc.allreduce_with_feedback(
            x, jnp.zeros_like(x), "mean", codec="onebit", axis_name="d", axis_index_groups=groups
        )

    reduced, residual = on_ranks(body, x)
    for group in groups:
        for rank in group:
            expected = np.mean([x[i] - residual[i] for i in group], axis=0)
            np.testing.assert_allclose(reduced[rank], expected, rtol=1e-5, atol=1e-6)


def test_leaves_that_are_not_floating_have_no_residual():
    x = {"count": jnp.arange(N), "values": jnp.ones((N, 300)) * jnp.arange(300.0)}

    def body(x):
        residual = {"count": None, "values": jnp.zeros(300, x["values"].dtype)}
        return jcc.allreduce_with_feedback(x, residual, "sum", codec="topk", axis_name="d")

    reduced, residual = on_ranks(body, x)
    assert residual["count"] is None
    assert (reduced["count"] == 6).all() and reduced["values"].max() == 4 * 299


@pytest.mark.parametrize(
    "residual,op,facts",
    [
        ([jnp.zeros(3)], "max", ("allreduce_with_feedback", "'max'", "'mean', 'sum'")),
        ({"w": jnp.zeros(3)}, "mean", ("pytree", "'w'", "zeros_like")),
        ([jnp.zeros(4)], "mean", ("float32[3]", "float64[4]")),
        ([jnp.zeros(3, "int32")], "sum", ("float32[3]", "floating", "int32[3]")),
    ],
)
def test_mismatched_residuals_raise_errors_that_name_the_leaf(residual, op, facts):
    def body(x):
        return jcc.allreduce_with_feedback([x], residual, op, codec="int8", axis_name="d")[0]

    with raises(jcc.errors.InvalidArgumentError, facts, golden=False):
        on_ranks(body, jnp.zeros((N, 3), "float32"))


# --- as a transformation of optax -------------------------------------------------------------


def descend(loss, start, data, optimizer, steps):
    """Gradient descent on N ranks, each with its row of data; returns each rank's parameters."""

    def body(data):
        # Gradients of varying parameters are each rank's own.
        params = jax.lax.pcast(start, "d", to="varying")

        def step(state, _):
            params, opt_state = state
            grads = jax.grad(loss)(params, data)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=steps)
        return params

    return on_ranks(body, data)


def chain(codec, error_feedback, optimizer):
    return optax.chain(
        jcc.optim.allreduce_gradients(codec=codec, error_feedback=error_feedback, axis_name="d"),
        optimizer,
    )


@pytest.mark.parametrize("codec", ["onebit", "topk:density=0.05"])
def test_feedback_converges_on_a_quadratic_with_different_minima(codec):
    """Each rank has another minimum, so no rank's gradient is zero at the common one."""
    centers = jax.random.normal(jax.random.key(1), (N, 600), "float32")
    best = centers.mean(axis=0)

    def loss(w, center):
        return 0.5 * jnp.sum((w - center) ** 2)

    def distance(error_feedback):
        rate = optax.exponential_decay(0.05, 100, 0.5)
        optimizer = chain(codec, error_feedback, optax.sgd(rate))
        w = descend(loss, jnp.zeros(600, "float32"), centers, optimizer, steps=600)
        np.testing.assert_array_equal(w, np.broadcast_to(w[0], w.shape))
        return float(jnp.linalg.norm(w[0] - best) / jnp.linalg.norm(best))

    kept, dropped = distance(True), distance(False)
    assert kept < 0.03
    assert dropped > 10 * kept


@pytest.mark.parametrize("codec", ["onebit", "topk:density=0.02"])
def test_feedback_converges_on_logistic_regression(codec):
    """The ranks' data have different centres, like data of different sources."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((N, 50, 400)) + rng.standard_normal((N, 1, 400))
    y = np.sign(x @ rng.standard_normal(400) + rng.standard_normal((N, 50)))
    data = jnp.float32(x), jnp.float32(y)

    def loss(w, data):
        x, y = data
        return jnp.mean(jax.nn.softplus(-y * (x @ w))) + 0.005 * jnp.sum(w**2)

    def final(codec, error_feedback=False):
        rate = optax.exponential_decay(0.3, 100, 0.5)
        optimizer = chain(codec, error_feedback, optax.sgd(rate))
        w = descend(loss, jnp.zeros(400, "float32"), data, optimizer, steps=500)[0]
        return float(jnp.mean(jax.vmap(lambda *rows: loss(w, rows))(*data)))

    exact, kept, dropped = final(None), final(codec, True), final(codec, False)
    assert kept - exact < 0.2 * (dropped - exact)
    assert kept < 1.05 * exact


def test_allreduce_gradients_without_feedback_has_no_state():
    optimizer = jcc.optim.allreduce_gradients(codec="int8", axis_name="d")
    assert optimizer.init(jnp.ones(3)) == optax.EmptyState()
    x = jnp.arange(N * 40.0).reshape(N, 40)

    def body(x):
        return optimizer.update(x, optax.EmptyState())[0], jcc.allreduce(
            x, "mean", axis_name="d", codec="int8"
        )

    reduced, expected = on_ranks(body, x)
    np.testing.assert_array_equal(reduced, expected)


def test_masked_leaves_are_not_reduced():
    """`optax.masked` excludes the other leaves from the reduction."""
    inner = jcc.optim.allreduce_gradients(codec="onebit", error_feedback=True, axis_name="d")
    optimizer = optax.masked(inner, {"shared": True, "own": False})
    x = {"shared": jnp.arange(N * 9.0).reshape(N, 9), "own": jnp.arange(N * 9.0).reshape(N, 9)}
    reduced = on_ranks(lambda x: optimizer.update(x, optimizer.init(x))[0], x)
    np.testing.assert_array_equal(reduced["own"], x["own"])
    np.testing.assert_array_equal(reduced["shared"], np.broadcast_to(reduced["shared"][0], (N, 9)))


def test_unknown_codec_raises_when_the_transformation_is_created():
    with raises(jcc.errors.UnknownNameError, "'int9'", "'int8'"):
        jcc.optim.allreduce_gradients(codec="int9")


def test_residuals_sharded_as_replicated_are_refused():
    """Its type varies by device, so ``P()`` is not a valid spec."""
    optimizer = jcc.optim.allreduce_gradients(codec="onebit", error_feedback=True, axis_name="d")
    mesh = jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=np.array(jax.devices()[:N]))
    on_mesh = functools.partial(jax.shard_map, mesh=mesh, out_specs=P())
    params = jnp.zeros(300)
    with raises(ValueError, "out_specs is P()", golden=False):
        jax.jit(on_mesh(optimizer.init, in_specs=P()))(params)

    def step(state, grads):  # an invariant residual is rejected, too
        return optimizer.update(grads[0], state)[0]

    zeros = jcc.optim.FeedbackState(params)
    facts = ("residual", "'d'", "P()", "jaxccomp.optim.state_specs(optimizer, params, 'd')")
    with raises(jcc.errors.InvalidArgumentError, facts):
        jax.jit(on_mesh(step, in_specs=(P(), P("d"))))(zeros, jnp.ones((N, 300)))


# --- Buckets and policies -------------------------------------------------------------------------


def layers(count=12, dtype="float32"):
    rng = np.random.default_rng(5)
    return {
        f"layer_{i}": {
            "kernel": rng.standard_normal((N, 40, 50)).astype(dtype),
            "bias": rng.standard_normal((N, 50)).astype(dtype),
        }
        for i in range(count)
    }


def updated(optimizer, grads, steps=1):
    """Returns the updates of equal steps."""

    def body(grads):
        def step(state, _):
            updates, state = optimizer.update(grads, state)
            return state, updates

        return jax.lax.scan(step, optimizer.init(grads), length=steps)[1]

    return on_ranks(body, grads)


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("bucket_bytes", [1, 17_000, 1 << 30])
def test_bucket_size_changes_calls_but_not_values(bucket_bytes, feedback):
    grads = layers()
    # Rounds each value once, alone.
    lossy = {"error_feedback": True, "codec": "bf16", "algorithm": "one_shot"}
    how = lossy if feedback else {}
    make = functools.partial(jcc.optim.allreduce_gradients, "sum", axis_name="d", **how)
    jcc.stats.reset()
    got = jax.block_until_ready(updated(make(bucket_bytes=bucket_bytes), grads))
    calls = jcc.stats.get().operations["allreduce"].calls // N
    expected = updated(make(), grads)
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    assert calls == {1: 24, 17_000: 6, 1 << 30: 1}[bucket_bytes]


def test_buckets_of_the_last_layers_are_sent_first():
    grads = jax.tree.map(lambda x: x[0], layers())
    planned = _policy.plan(grads, [], None, 17_000)
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_flatten_with_path(grads)[0]
    ]
    (buckets,) = planned.phases
    first, last = ({paths[i] for i in buckets[place].leaves} for place in (0, -1))
    assert first == {f"layer_{i}/{name}" for i in (11, 10) for name in ("kernel", "bias")}
    assert last == {f"layer_{i}/{name}" for i in (1, 0) for name in ("kernel", "bias")}
    assert sorted(i for bucket in buckets for i in bucket.leaves) == list(range(24))


def test_small_leaves_share_a_bucket_with_large_ones():
    """The bias between two large kernels joins one of them."""
    widths = [784, 1536, 1536, 1536, 10]
    shapes = {
        f"layer_{i}/{name}": shape
        for i, pair in enumerate(itertools.pairwise(widths))
        for name, shape in {"kernel": pair, "bias": pair[1:]}.items()
    }
    grads = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}
    paths = sorted(grads)  # as JAX flattens a dict
    (buckets,) = _policy.plan(grads, [], None, 4 << 20).phases
    found = [{paths[i].removeprefix("layer_") for i in bucket.leaves} for bucket in buckets]
    assert found == [
        {"3/kernel", "3/bias", "2/kernel"},
        {"2/bias", "1/kernel"},
        {"1/bias", "0/kernel", "0/bias"},
    ]
    # Of one codec only: a bucket of another one never takes a leaf.
    rules = [jcc.optim.Rule("bf16", pattern="*bias")]
    (buckets,) = _policy.plan(grads, rules, "int8", 4 << 20).phases
    for bucket in buckets:
        assert {paths[i].endswith("bias") for i in bucket.leaves} == {bucket.codec == "bf16"}
    assert sorted(i for bucket in buckets for i in bucket.leaves) == list(range(8))


def test_policy_selects_the_codec_of_each_leaf():
    """The first matching rule applies; other leaves use the default."""
    grads = layers(3)
    rules = [
        jcc.optim.Rule(None, pattern="*bias"),
        jcc.optim.Rule("onebit", pattern="layer_[12]/*", min_bytes=1000),
    ]
    got = updated(
        jcc.optim.allreduce_gradients("sum", policy=rules, codec="fp16", axis_name="d"), grads
    )
    codecs = {"layer_0": "fp16", "layer_1": "onebit", "layer_2": "onebit"}
    for name, codec in codecs.items():
        expected = on_ranks(
            lambda x, c=codec: jcc.allreduce(x, codec=c, axis_name="d"), grads[name]
        )
        exact = on_ranks(lambda x: jcc.allreduce(x, axis_name="d"), grads[name])
        np.testing.assert_array_equal(got[name]["kernel"][:, 0], expected["kernel"])
        np.testing.assert_array_equal(got[name]["bias"][:, 0], exact["bias"])


@pytest.mark.parametrize("feedback", [False, True])
def test_warm_up_ends_on_all_ranks_at_the_same_step(feedback):
    grads = layers(2)
    rules = [
        jcc.optim.Rule("onebit", pattern="*kernel", from_step=4),
        jcc.optim.Rule("bf16", pattern="*kernel", from_step=2),
    ]
    optimizer = jcc.optim.allreduce_gradients(
        "sum", error_feedback=feedback, policy=rules, bucket_bytes=9000, axis_name="d"
    )
    got = updated(optimizer, grads, steps=6)["layer_1"]["kernel"]
    exact = on_ranks(lambda x: jcc.allreduce(x, axis_name="d"), grads["layer_1"]["kernel"])
    off = [float(np.abs(got[:, step] - exact).max()) for step in range(6)]
    assert off[:2] == [0, 0]
    assert 0 < off[2] < 0.1 and 0 < off[3] < 0.1
    assert off[4] > 0.5 and off[5] > 0.5
    assert (got == got[0]).all()


def test_error_in_a_policy_phase_names_the_users_line():
    """JAX traces branches without the callers' frames."""
    optimizer = jcc.optim.allreduce_gradients(
        codec="int8", axis_name="d", policy=[jcc.optim.Rule("onebit", from_step=3)]
    )

    def body(x):
        return optimizer.update(x, optimizer.init(x))[0]

    mesh = jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=np.array(jax.devices()[:N]))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P())
    text = jax.jit(mapped).lower(jnp.ones((N, 300))).as_text()
    line = body.__code__.co_firstlineno + 1
    assert text.count(f'"test_optim.py:{line}"') == 2 and '"unknown"' not in text


def test_rule_with_a_lossy_codec_that_matches_only_integers_raises():
    grads = {"w": jnp.ones(4), "steps": jnp.ones(4, jnp.int32)}

    def init(codec, pattern):
        rule = jcc.optim.Rule(codec, pattern=pattern)
        return jcc.optim.allreduce_gradients(policy=[rule]).init(grads)

    with raises(jcc.errors.UnsupportedDTypeError, "'steps'", "'int32'", "lossy"):
        init("int8", "st*")
    init("int8", "*")  # it also matches w
    init("lossless", "st*")


def test_invalid_policies_raise_errors_that_name_the_rule():
    make = functools.partial(jcc.optim.allreduce_gradients, axis_name="d")
    params = jax.tree.map(lambda x: x[0], layers(1))
    invalid = functools.partial(raises, jcc.errors.InvalidArgumentError)
    with invalid("'*bais'", "bias"):
        make(policy=[jcc.optim.Rule("bf16", pattern="*bais")]).init(params)
    with raises(jcc.errors.UnknownNameError, "'onebits'", "'onebit'"):
        jcc.optim.Rule("onebits")
    with invalid("from_step", "0", "-1"):
        jcc.optim.Rule("bf16", from_step=-1)
    with invalid("jaxccomp.optim.Rule"):
        make(policy=["bf16"])
    for wrong in (0, 1.5, True):
        with invalid("bucket_bytes", "positive", wrong):
            make(bucket_bytes=wrong)


# --- A forgotten pcast ----------------------------------------------------------------------------

REDUCTIONS = {
    "allreduce": lambda g, how: jcc.allreduce(g, "mean", axis_name="d", **how),
    "with a codec": lambda g, how: jcc.allreduce(
        g, "sum", axis_name="d", **{"codec": "bf16"} | how
    ),
    "with feedback": lambda g, how: jcc.allreduce_with_feedback(
        g, jnp.zeros_like(g), "mean", axis_name="d", **how
    )[0],
    "optim": lambda g, how: jcc.optim.allreduce_gradients(axis_name="d", **how).update(
        g, optax.EmptyState()
    )[0],
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("codec", [None, "int8"])
def test_gradient_that_is_already_summed_is_refused(name, codec):
    """It would be too large by a factor of the number of ranks, and not compressed."""
    how = {} if codec is None else {"codec": codec}

    def body(x, cast):
        w = jnp.full(3, 2.0)
        own = jax.lax.pcast(w, "d", to="varying") if cast else w
        gradient = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(own)
        return jax.lax.pcast(REDUCTIONS[name](gradient, how), "d", to="varying")

    x = jnp.arange(N * 15.0).reshape(N, 5, 3)
    assert np.isfinite(on_ranks(functools.partial(body, cast=True), x)).all()
    with raises(
        jcc.errors.InvalidArgumentError, "along 'd'", "own = jax.lax.pcast(params, 'd', to="
    ):
        on_ranks(functools.partial(body, cast=False), x)


def test_allreduce_of_a_replicated_one_counts_the_ranks():
    counted = on_ranks(
        lambda x: x + jcc.allreduce(jnp.ones(()), axis_name="d"), jnp.zeros(N, "float32")
    )
    assert (counted == N).all()


# --- A Python loop over a jitted step -------------------------------------------------------------


@pytest.mark.parametrize("rules", [[], [jcc.optim.Rule("int4", from_step=3)]])
def test_python_loop_passes_residuals_as_sharded_arrays(rules):
    """Gives the same results as a scan inside shard_map, and residuals keep their sharding."""
    optimizer = optax.chain(
        jcc.optim.allreduce_gradients(
            "sum", codec="onebit", error_feedback=True, axis_name="d", policy=rules
        ),
        optax.sgd(0.02, momentum=0.5),
    )
    mesh = jax.make_mesh(
        (N,), ("d",), axis_types=(AxisType.Auto,), devices=np.array(jax.devices()[:N])
    )
    targets = np.random.default_rng(2).standard_normal((N, 300)).astype("float32")
    params = {"w": jnp.zeros(300, "float32")}
    specs = jcc.optim.state_specs(optimizer, params, "d")
    on_mesh = functools.partial(jax.shard_map, mesh=mesh)

    def descend(params, state, target):
        updates, state = optimizer.update({"w": params["w"] - target[0]}, state)
        return optax.apply_updates(params, updates), state

    @jax.jit
    @functools.partial(on_mesh, in_specs=P(), out_specs=specs)
    def start(params):
        return jcc.optim.stack_residuals(optimizer.init(params))

    @jax.jit
    @functools.partial(on_mesh, in_specs=(P(), specs, P("d")), out_specs=(P(), specs))
    def step(params, state, target):
        params, state = descend(params, jcc.optim.unstack_residuals(state), target)
        return params, jcc.optim.stack_residuals(state)

    @jax.jit
    @functools.partial(on_mesh, in_specs=(P(), P("d")), out_specs=P())
    def scanned(params, target):
        carry = (params, optimizer.init(params))
        return jax.lax.scan(lambda c, _: (descend(*c, target), None), carry, length=6)[0][0]

    state = start(params)
    moved = params
    for _ in range(6):
        moved, state = step(moved, state, targets)
    np.testing.assert_array_equal(moved["w"], scanned(params, targets)["w"])
    residual = state[0].residual
    assert residual["w"].shape == (N, 300)
    assert len({shard.data.tobytes() for shard in residual["w"].addressable_shards}) == N

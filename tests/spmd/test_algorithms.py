"""Training algorithms: comparison with their definitions, and convergence on a convex problem."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import errors, optim
from jaxccomp._native import engine

optax = pytest.importorskip("optax")
pytestmark = pytest.mark.skipif(not engine.available(), reason="needs the native engine")

N = 4
MATRIX = jnp.zeros((40, 60), "float32")


def on_ranks(function, *operands, check_vma=True):
    """Runs ``function`` with row r of the operands on rank r; returns results as rows."""
    devices = np.array(jax.devices()[:N])
    mesh = jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=devices)

    def varying(x):
        if not check_vma or "d" in jax.typeof(x).mat.varying:
            return x
        return lax.pcast(x, "d", to="varying")

    def body(*rows):
        results = function(*jax.tree.map(lambda x: x[0], rows))
        return jax.tree.map(lambda x: varying(x)[None], results)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)
    return jax.jit(mapped)(*operands)


def problem(seed=0):
    """A quadratic for each rank: the optimum of their mean differs from the optimum of each."""
    random = np.random.default_rng(seed)
    scale = 1 + random.random((N, 12, 300)).astype(np.float32)
    target = random.standard_normal((N, 12, 300)).astype(np.float32)
    return scale, target, (scale * target).sum(0) / scale.sum(0)


def descend(optimizer, steps, rate=None):
    """Returns the distance from the optimum on each rank, relative to the start."""
    scale, target, optimum = problem()

    def train(scale, target):
        def step(carry, number):
            w, state = carry
            own = lax.pcast(w, "d", to="varying")
            grads = jax.grad(lambda w: jnp.sum(scale * (w["m"] - target) ** 2) / 2)(own)
            updates, state = optimizer.update(grads, state, w)
            shrink = 1 if rate is None else rate(number)
            w = jax.tree.map(lambda p, u: p + shrink * u, w, updates)
            return (w, state), None

        w = {"m": jnp.zeros((12, 300), "float32")}
        return lax.scan(step, (w, optimizer.init(w)), jnp.arange(steps))[0][0]

    w = on_ranks(train, scale, target)["m"]
    for rank in range(1, N):
        np.testing.assert_array_equal(w[rank], w[0])
    return float(np.linalg.norm(w[0] - optimum) / np.linalg.norm(optimum))


def fading(number):
    """Decays: delayed values leave an error proportional to it (Stich and Karimireddy 2020)."""
    return jnp.float32(1 / (1 + number / 20))


@pytest.mark.parametrize(
    ("codec", "off"),
    [
        pytest.param("bf16", 1e-3, marks=pytest.mark.slow),
        pytest.param("int8", 1e-3, marks=pytest.mark.slow),
        pytest.param("int4", 1e-3, marks=pytest.mark.slow),
        pytest.param("int2", 1e-2, marks=pytest.mark.slow),
        ("onebit", 1e-2),
        pytest.param("onebit:block=256", 1e-2, marks=pytest.mark.slow),
        pytest.param("tbq:threshold=8", 1e-2, marks=pytest.mark.slow),
        pytest.param("topk:density=0.05", 2e-2, marks=pytest.mark.slow),
        pytest.param("dgc:density=0.05", 2e-2, marks=pytest.mark.slow),
        pytest.param("randomk:density=0.1", 3e-2, marks=pytest.mark.slow),
    ],
)
def test_every_codec_with_feedback_converges_to_the_optimum(codec, off):
    average = optim.allreduce_gradients(codec=codec, error_feedback=True, axis_name="d")
    assert descend(optax.chain(average, optax.sgd(0.1)), 1500, fading) < off


@pytest.mark.parametrize(
    ("optimizer", "off"),
    [
        (optax.chain(optim.powersgd(rank=2, axis_name="d"), optax.sgd(0.1)), 1e-2),
        (optax.chain(optim.dgc(0.5, density=0.05, axis_name="d"), optax.sgd(0.05)), 5e-2),
        (
            optax.chain(
                optim.dgc(0.5, density=0.05, warmup_steps=100, axis_name="d"), optax.sgd(0.05)
            ),
            5e-2,
        ),
        (optim.onebit_adam(0.03, warmup_steps=100, axis_name="d"), 6e-2),
        (optax.chain(optim.ecq(axis_name="d"), optax.sgd(0.1)), 1e-2),
        (optax.chain(optim.adacomp(50, axis_name="d"), optax.sgd(0.1)), 2e-2),
    ],
    ids=["powersgd", "dgc", "dgc with warm-up", "onebit_adam", "ecq", "adacomp"],
)
def test_every_algorithm_converges_to_the_optimum(optimizer, off):
    assert descend(optimizer, 1500, fading) < off


# --- PowerSGD ---


def run_steps(optimizer, gradients, params):
    """Returns the updates of each step, and the last state."""

    def body(gradients):
        def step(state, grads):
            updates, state = optimizer.update(grads, state)
            return state, updates

        return lax.scan(step, optimizer.init(params), gradients)[::-1]

    return on_ranks(body, gradients)


def test_powersgd_matches_its_definition():
    random = np.random.default_rng(1)
    gradients = {
        "kernel": random.standard_normal((N, 3, 4, 15, 50)).astype(np.float32),
        "bias": random.standard_normal((N, 3, 50)).astype(np.float32),
    }
    params = {"kernel": jnp.zeros((4, 15, 50), "float32"), "bias": jnp.zeros(50, "float32")}
    optimizer = optim.powersgd(rank=3, axis_name="d")
    updates, state = run_steps(optimizer, gradients, params)
    np.testing.assert_allclose(updates["bias"][0], gradients["bias"].mean(0), rtol=1e-5, atol=1e-6)

    basis = np.asarray(optimizer.init(params).basis["kernel"], np.float64)
    residual = np.zeros((N, 60, 50))
    for step in range(3):
        matrices = gradients["kernel"][:, step].reshape(N, 60, 50) + residual
        left = np.linalg.qr((matrices @ basis).mean(0))[0]
        basis = np.stack([m.T @ left for m in matrices]).mean(0)
        decoded = left @ basis.T
        # The matrices include the previous residual, so unsent values are sent later.
        residual = matrices - decoded
        got = updates["kernel"][0, step].reshape(60, 50)
        np.testing.assert_allclose(got, decoded, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        state.residual["kernel"].reshape(N, 60, 50), residual, rtol=1e-3, atol=1e-3
    )
    assert state.residual["bias"] is None and state.basis["bias"] is None


def test_powersgd_delivers_all_gradients_over_the_steps():
    random = np.random.default_rng(2)
    gradients = random.standard_normal((N, 5, 40, 60)).astype(np.float32)
    updates, state = run_steps(optim.powersgd(axis_name="d"), gradients, MATRIX)
    expected = (gradients.sum(1) - np.asarray(state.residual)).mean(0)
    np.testing.assert_allclose(updates[0].sum(0), expected, rtol=1e-3, atol=1e-4)


def test_powersgd_is_exact_for_matrices_of_its_rank():
    random = np.random.default_rng(3)
    left, right = random.standard_normal((40, 2)), random.standard_normal((2, 60))
    gradients = np.stack([left * (r + 1) @ right for r in range(N)]).astype(np.float32)[:, None]
    updates, state = run_steps(optim.powersgd(rank=3, axis_name="d"), gradients, MATRIX)
    np.testing.assert_allclose(updates[0, 0], gradients.mean(0)[0], rtol=1e-3, atol=1e-3)
    assert np.isfinite(state.basis).all()  # its third column is linearly dependent


# --- DGC ---


def test_dgc_matches_its_definition():
    random = np.random.default_rng(4)
    gradients = random.standard_normal((N, 4, 1000)).astype(np.float32)
    optimizer = optim.dgc(0.9, density=0.1, codec="topk", axis_name="d")
    updates, state = run_steps(optimizer, gradients, jnp.zeros(1000, "float32"))
    u, v = np.zeros((2, N, 1000), np.float32)
    for step in range(4):
        u = np.float32(0.9) * u + gradients[:, step]
        v = v + u
        sent = np.zeros_like(v, bool)
        for rank in range(N):  # selects by v, before sent elements are zeroed
            sent[rank, np.argsort(-np.abs(v[rank]))[:100]] = True
        np.testing.assert_allclose(
            updates[0, step], np.where(sent, v, 0).mean(0), rtol=1e-5, atol=1e-6
        )
        u, v = np.where(sent, 0, u), np.where(sent, 0, v)
    np.testing.assert_allclose(state.momentum, u, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.unsent, v, rtol=1e-5, atol=1e-6)


def test_dgc_raises_sparsity_in_warm_up_and_clips_gradients():
    gradients = np.random.default_rng(5).standard_normal((N, 12, 4000)).astype(np.float32)
    optimizer = optim.dgc(
        0.0, density=0.001, warmup_steps=8, codec="topk", clip_norm=1.0, axis_name="d"
    )
    updates, _ = run_steps(optimizer, gradients, jnp.zeros(4000, "float32"))
    sent = (np.asarray(updates[0]) != 0).mean(1) / N
    np.testing.assert_allclose(
        sent, [0.2] * 2 + [0.0625] * 2 + [0.0156] * 2 + [0.004] * 2 + [0.001] * 4, rtol=0.25
    )
    whole = optim.dgc(0.0, density=1.0, codec="topk", clip_norm=1.0, axis_name="d")
    updates, _ = run_steps(whole, gradients[:, :1], jnp.zeros(4000, "float32"))
    norms = np.linalg.norm(gradients[:, 0], axis=1)
    expected = (gradients[:, 0] / norms[:, None] / 2).mean(0)
    np.testing.assert_allclose(updates[0, 0], expected, rtol=1e-4, atol=1e-7)


# --- ECQ-SGD ---


@pytest.mark.parametrize("codec", ["int4", "int4:rounding=stochastic"])
def test_ecq_update_plus_residual_equals_gradient_plus_decayed_residual(codec):
    """By definition: update + new residual = gradient + decayed old residual."""
    gradients = np.random.default_rng(9).standard_normal((N, 5, 3000)).astype(np.float32)
    optimizer = optim.ecq(0.25, 0.75, codec=codec, axis_name="d")

    def body(gradients):
        def step(state, grads):
            updates, state = optimizer.update(grads, state)
            return state, (updates, state.error)

        return lax.scan(step, optimizer.init(jnp.zeros(3000, "float32")), gradients)[1]

    updates, memory = map(np.asarray, on_ranks(body, gradients))
    before = np.zeros(3000)
    for step in range(5):
        after = memory[:, step].mean(0)
        arrived = gradients[:, step].mean(0) + 0.75 * before - after
        np.testing.assert_allclose(updates[0, step], arrived, rtol=1e-4, atol=1e-5)
        assert np.abs(after).max() > 1e-3
        before = after


def test_ecq_without_decay_equals_error_feedback():
    gradients = np.random.default_rng(10).standard_normal((N, 5, 3000)).astype(np.float32)
    zeros = jnp.zeros(3000, "float32")
    updates, _ = run_steps(optim.ecq(1, 1, codec="int4", axis_name="d"), gradients, zeros)
    plain = optim.allreduce_gradients(codec="int4", error_feedback=True, axis_name="d")
    np.testing.assert_allclose(updates, run_steps(plain, gradients, zeros)[0], rtol=1e-5, atol=1e-6)


# --- AdaComp ---


def test_adacomp_matches_its_definition():
    gradients = np.random.default_rng(11).standard_normal((N, 4, 1030)).astype(np.float32)
    optimizer = optim.adacomp(50, axis_name="d")
    updates, state = run_steps(optimizer, gradients, jnp.zeros(1030, "float32"))
    unsent = np.zeros((N, 1030), np.float32)
    for step in range(4):
        g = gradients[:, step]
        total = unsent + g
        bins = np.pad(np.abs(total), ((0, 0), (0, 20))).reshape(N, 21, 50).max(2)
        chosen = np.abs(total + g) >= np.repeat(bins, 50, axis=1)[:, :1030]
        sent = np.where(chosen, np.sign(total) * bins.mean(1, keepdims=True), 0)
        assert 1 < chosen.sum() / bins.size < 20
        np.testing.assert_allclose(updates[0, step], sent.mean(0), rtol=1e-5, atol=1e-6)
        unsent = total - sent
    np.testing.assert_allclose(state.residual, unsent, rtol=1e-4, atol=1e-5)


def test_adacomp_returns_nan_for_nonfinite_gradients_and_zeros_for_zeros():
    gradients = np.zeros((N, 2, 120), np.float32)
    gradients[1, 0, 7], gradients[2, 0, 60] = np.nan, np.inf
    updates, state = run_steps(
        optim.adacomp(50, axis_name="d"), gradients, jnp.zeros(120, "float32")
    )
    assert np.isnan(updates[:, 0]).all()
    assert not np.any(updates[:, 1]) and not np.any(state.residual)


# --- 1-bit Adam ---


def test_onebit_adam_equals_adam_during_warm_up():
    gradients = np.random.default_rng(6).standard_normal((N, 6, 300)).astype(np.float32)
    updates, state = run_steps(
        optim.onebit_adam(1e-2, warmup_steps=6, axis_name="d"), gradients, jnp.zeros(300, "float32")
    )
    adam = optax.adam(1e-2)
    expected = adam.init(jnp.zeros(300, "float32"))
    for step in range(6):
        update, expected = adam.update(gradients[:, step].mean(0), expected)
        np.testing.assert_allclose(updates[0, step], update, rtol=1e-4, atol=1e-7)
    assert not np.any(state.residual)


def test_onebit_adam_freezes_variance_and_delivers_all_gradients():
    gradients = np.random.default_rng(7).standard_normal((N, 8, 300)).astype(np.float32)
    gradients[..., :10] = 0  # no gradient, so no step, although one-bit encoding has no zero
    optimizer = optim.onebit_adam(1e-2, warmup_steps=3, axis_name="d")
    updates, state = run_steps(optimizer, gradients, jnp.zeros(300, "float32"))
    _, early = run_steps(optimizer, gradients[:, :3], jnp.zeros(300, "float32"))
    np.testing.assert_array_equal(state.nu, early.nu)
    assert not np.any(updates[..., :10])
    mean = np.zeros(300)
    for step in range(8):  # the exact first moment, without the effect of residuals
        mean = 0.9 * mean + 0.1 * gradients[:, step].mean(0)
    assert np.any(state.residual)
    assert np.corrcoef(state.mu[0][10:], mean[10:])[0, 1] > 0.3


# --- errors ---


def test_invalid_arguments_raise_errors_that_name_allowed_values():
    with raises(errors.InvalidArgumentError, "powersgd", "rank", "1", "0"):
        optim.powersgd(rank=0)
    with raises(errors.InvalidArgumentError, "dgc", "codec", '"topk"', "'int8'"):
        optim.dgc(codec="int8")
    with raises(errors.InvalidArgumentError, "dgc", "density", "(0, 1]", "momentum", "not 0,"):
        optim.dgc(density=0)
    with raises(errors.InvalidArgumentError, "onebit_adam", "warmup_steps", "1", "0"):
        optim.onebit_adam(1e-3, warmup_steps=0)
    with raises(errors.InvalidArgumentError, "ecq", "strength", "(0, 1]", "not 0"):
        optim.ecq(strength=0)
    with raises(errors.InvalidArgumentError, "adacomp", "bin_size", "positive", "0"):
        optim.adacomp(bin_size=0)
    with raises(errors.InvalidArgumentError, "adacomp", "codec", '"lossless"', "'int8'"):
        optim.adacomp(codec="int8")
    for make in (optim.dgc, optim.ecq, optim.adacomp):
        with raises(errors.UnsupportedDTypeError, "gradients", "int32", "optax.masked"):
            make().init(jnp.zeros(3, jnp.int32))


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.powersgd(axis_name="d"),
        optim.dgc(density=0.1, axis_name="d"),
        optim.onebit_adam(1e-3, 2, axis_name="d"),
        optim.ecq(codec="int4", axis_name="d"),  # a stochastic codec would draw others
        optim.adacomp(axis_name="d"),
    ],
    ids=["powersgd", "dgc", "onebit_adam", "ecq", "adacomp"],
)
def test_states_pass_between_jitted_steps_of_a_python_loop(optimizer):
    """Per-device states are carried as rows: the bits equal the results of a scan."""
    gradients = np.random.default_rng(8).standard_normal((N, 4, 40, 60)).astype(np.float32)
    params = jnp.zeros((40, 60), "float32")
    mesh = jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=np.array(jax.devices()[:N]))
    specs = optim.state_specs(optimizer, params, "d")

    def start():
        return optim.stack_residuals(optimizer.init(params))

    def step(state, grads):
        updates, state = optimizer.update(grads[0], optim.unstack_residuals(state))
        return updates, optim.stack_residuals(state)

    state = jax.jit(jax.shard_map(start, mesh=mesh, in_specs=(), out_specs=specs))()
    step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(specs, P("d")), out_specs=(P(), specs)))
    expected, _ = run_steps(optimizer, gradients, params)
    for number in range(4):
        updates, state = step(state, gradients[:, number])
        np.testing.assert_array_equal(updates, expected[0, number])


def test_algorithms_work_between_processes_without_axis_name():
    """The same functions without axis_name, between processes (here one)."""
    jcc.init()
    grads = {"w": jnp.ones((40, 60))}
    made = [optim.powersgd(), optim.dgc(density=1.0), optim.onebit_adam(1e-3, 5)]
    for optimizer in [*made, optim.ecq(), optim.adacomp()]:
        updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(grads))
        assert updates["w"].shape == (40, 60)


# --- States that do not fit ---

STATES = {
    "allreduce_gradients": optim.allreduce_gradients(
        codec="int8", error_feedback=True, axis_name="d"
    ),
    "powersgd": optim.powersgd(axis_name="d"),
    "dgc": optim.dgc(axis_name="d"),
    "ecq": optim.ecq(axis_name="d"),
    "adacomp": optim.adacomp(axis_name="d"),
    "onebit_adam": optim.onebit_adam(1e-3, warmup_steps=10, axis_name="d"),
}


@pytest.mark.parametrize("name", STATES)
def test_mismatched_state_raises_an_error_that_names_the_algorithm(name):
    optimizer = STATES[name]
    grads = np.ones((N, 40, 60), np.float32)

    def refused(facts, make_state, in_specs):
        devices = np.array(jax.devices()[:N])
        mesh = jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=devices)
        state = make_state()

        def body(state, rows):
            return optimizer.update(rows[0], state)[0]

        mapped = jax.shard_map(body, mesh=mesh, in_specs=(in_specs, P("d")), out_specs=P())
        with raises(errors.InvalidArgumentError, name, facts):
            jax.eval_shape(mapped, state, grads)

    matrix = jnp.zeros((40, 60), "float32")
    shared = ("'d'", "P()", "jaxccomp.optim.state_specs(optimizer, params, 'd')")
    refused(shared, lambda: optimizer.init(matrix), P())
    specs = optim.state_specs(optimizer, matrix, "d")
    stacked = jax.tree.map(
        lambda x: jnp.zeros((N, 40, 60)) if x.shape == (40, 60) else x, optimizer.init(matrix)
    )
    refused(("[1, 40, 60]", "[40, 60]", "unstack_residuals"), lambda: stacked, specs)
    refused(("state", "init(params)", "EmptyState"), optax.EmptyState, P())

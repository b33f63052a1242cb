"""Outer steps: compared with their published definitions, and their effect on parameters."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from golden_errors import raises
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxccomp import errors, optim
from jaxccomp._native import engine

optax = pytest.importorskip("optax")
pytestmark = pytest.mark.skipif(not engine.available(), reason="needs the native engine")

N = 4
MESH = jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=np.array(jax.devices()[:N]))
ON_MESH = {"axis_name": "d", "mesh": MESH}
SHAPES = {"kernel": (90, 70), "bias": (7,), "scale": ()}


def start():
    random = np.random.default_rng(0)
    return {
        name: np.asarray(random.standard_normal(shape), np.float32)
        for name, shape in SHAPES.items()
    }


def rows(params):
    """Returns the same parameters on each rank."""
    sharding = NamedSharding(MESH, P("d"))
    return jax.tree.map(lambda x: jax.device_put(np.stack([x] * N), sharding), params)


def drift(seed):
    """Returns each rank's local updates, a row each."""
    random = np.random.default_rng(seed)
    return {
        name: 0.1 * np.asarray(random.standard_normal((N, *shape)), np.float32)
        for name, shape in SHAPES.items()
    }


def learnt(params, seed):
    """Returns the parameters after local training on each rank, in single precision."""
    return jax.tree.map(jnp.add, params, drift(seed))


def same_on_all_ranks(params):
    for x in jax.tree.leaves(params):
        x = np.asarray(x)
        assert (x == x[:1]).all()


def nesterov(anchor, momentum, gradient):
    """The outer optimiser of DiLoCo (Douillard et al. 2023, section 2)."""
    momentum = 0.9 * momentum + gradient
    return anchor - 0.7 * (gradient + 0.9 * momentum), momentum


@pytest.mark.parametrize(
    ("how", "off"),
    [
        ({}, 1e-6),
        ({"codec": "lossless"}, 1e-6),
        # Of differences up to about 0.5, encoded twice.
        ({"codec": "int8"}, 0.02),
        ({"codec": "int4", "error_feedback": True}, 0.3),
    ],
    ids=str,
)
def test_diloco_matches_its_definition(how, off):
    outer = optim.diloco(**how, **ON_MESH)
    step = jax.jit(outer.step)
    params, state = rows(start()), jax.jit(outer.init)(start())
    anchor = {name: np.float64(x) for name, x in start().items()}
    momentum = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for number in range(4):
        before = params
        params, state = step(learnt(params, number), state)
        same_on_all_ranks(params)
        for name in SHAPES:
            assert (np.asarray(state.params[name]) == np.asarray(params[name])[0]).all()
            gradient = -np.mean(np.float64(drift(number)[name]), axis=0)
            anchor[name], momentum[name] = nesterov(anchor[name], momentum[name], gradient)
            np.testing.assert_allclose(params[name][0], anchor[name], atol=off * (number + 1))
    assert jax.tree.leaves(before)[0].shape[0] == N


@pytest.mark.slow
def test_diloco_accepts_any_optax_optimizer():
    outer = optim.diloco(optax.adam(0.1), **ON_MESH)
    params, state = rows(start()), outer.init(start())
    params, _ = jax.jit(outer.step)(learnt(params, 0), state)
    mean = jax.tree.map(lambda x: -jnp.mean(x, axis=0), drift(0))
    updates, _ = optax.adam(0.1).update(mean, optax.adam(0.1).init(start()))
    expected = optax.apply_updates(start(), updates)
    for name in SHAPES:
        np.testing.assert_allclose(params[name][0], expected[name], atol=1e-4)


def test_local_sgd_with_every_1_equals_data_parallel_training():
    """With H = 1 and plain SGD, the mean of parameters equals a step with the mean gradient."""
    target = drift(1)["kernel"]
    outer = optim.local_sgd(**ON_MESH)
    step = jax.jit(outer.step)
    params, expected = {"kernel": start()["kernel"]}, start()["kernel"]
    params, state = rows(params), outer.init(params)
    for _ in range(5):
        params = jax.tree.map(lambda x: x - 0.5 * (x - target), params)
        params, state = step(params, state)
        expected = expected - 0.5 * (expected - target).mean(0)
        same_on_all_ranks(params)
        np.testing.assert_allclose(params["kernel"][0], expected, atol=1e-6)


@pytest.mark.parametrize(
    "make", [optim.diloco, pytest.param(optim.sparse_loco, marks=pytest.mark.slow)]
)
def test_outer_step_inside_shard_map_equals_the_step_on_a_mesh(make):
    """The functions inside one program, compared with the ones on a mesh."""
    outer = make(axis_name="d")
    drifts = jax.tree.map(lambda *x: np.stack(x, axis=1), *map(drift, range(3)))

    @jax.jit
    @functools.partial(jax.shard_map, mesh=MESH, in_specs=(P(), P("d")), out_specs=P())
    def train(params, drifts):
        def body(carry, moved):
            params, state = outer.step(jax.tree.map(jnp.add, *(carry[0], moved)), carry[1])
            return (params, state), None

        drifts = jax.tree.map(lambda x: x[0], drifts)
        return jax.lax.scan(body, (params, outer.init(params)), drifts)[0][0]

    got = train(start(), drifts)
    outer = make(**ON_MESH)
    params, state = rows(start()), outer.init(start())
    for number in range(3):
        params, state = jax.jit(outer.step)(learnt(params, number), state)
    for name in SHAPES:
        np.testing.assert_allclose(got[name], params[name][0], atol=1e-6)


# --- SparseLoCo ---


def two_bits(values):
    """Quantises sent values of a chunk: signs, and the means of the large and the small ones."""
    sizes = np.abs(values)
    large = sizes > sizes.mean()
    levels = np.zeros_like(values)
    for chosen in (large, ~large):
        if chosen.any():
            levels[chosen] = np.float32(ml_dtypes.bfloat16(sizes[chosen].mean()))
    return np.where(values < 0, -levels, levels)


def sent_of(x, density, quantize):
    """Top-k of each chunk, and Q (Sarfi et al. 2025, algorithm 1)."""
    flat, result = x.reshape(-1), np.zeros(x.size, np.float32)
    for begin in range(0, x.size, 4096):
        chunk = flat[begin : begin + 4096]
        # A partial last chunk is padded.
        count = int(np.ceil(density * min(4096, x.size)))
        places = np.argsort(-np.abs(np.pad(chunk, (0, count))), kind="stable")[:count]
        values = two_bits(np.pad(chunk, (0, count))[places]) if quantize else None
        for i, place in enumerate(places):
            if place < len(chunk):
                result[begin + place] = values[i] if quantize else chunk[place]
    return result.reshape(x.shape)


@pytest.mark.parametrize("quantize", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_sparse_loco_matches_its_definition(quantize):
    outer = optim.sparse_loco(density=0.05, decay=0.9, quantize=quantize, **ON_MESH)
    step = jax.jit(outer.step)
    params, state = rows(start()), outer.init(start())
    error = {name: np.zeros((N, *shape), np.float32) for name, shape in SHAPES.items()}
    for number in range(3):
        before = params
        moved = learnt(params, number)
        params, state = step(moved, state)
        same_on_all_ranks(params)
        for name in SHAPES:
            gradient = np.asarray(before[name]) - np.asarray(moved[name])
            error[name] = np.float32(0.9) * error[name] + gradient
            sent = np.stack([sent_of(e, 0.05, quantize) for e in error[name]])
            error[name] = error[name] - sent
            expected = np.asarray(before[name])[0] - sent.mean(0)
            # A value at a threshold, or a level between two bfloat16 values, may round the other
            # way.
            off = np.abs(np.asarray(params[name])[0] - expected)
            assert (off > 1e-5).mean() < 0.01, (name, number)
            error[name] = np.asarray(state.exchange.residual[name])


def test_sparse_loco_of_density_1_equals_diloco_without_momentum():
    sparse = optim.sparse_loco(density=1, quantize=False, learning_rate=0.5, **ON_MESH)
    dense = optim.diloco(optax.sgd(0.5), **ON_MESH)
    results = []
    for outer in (sparse, dense):
        params, state = rows(start()), outer.init(start())
        for number in range(3):
            params, state = jax.jit(outer.step)(learnt(params, number), state)
        results.append(params)
    for name in SHAPES:
        np.testing.assert_allclose(results[0][name], results[1][name], atol=1e-6)


# --- To the optimum of a convex problem ---


@pytest.mark.parametrize(
    ("make", "off"),
    [
        (functools.partial(optim.local_sgd, codec="int8"), 1e-2),
        (functools.partial(optim.diloco, codec="int4", error_feedback=True), 2e-2),
        (functools.partial(optim.sparse_loco, density=0.05, decay=1), 0.1),
    ],
    ids=["local_sgd", "diloco", "sparse_loco"],
)
def test_outer_steps_converge_to_the_optimum_of_a_convex_problem(make, off):
    """Quadratics of equal curvature: local steps do not move the optimum."""
    random = np.random.default_rng(7)
    target = random.standard_normal((N, 12, 300)).astype(np.float32)
    outer = make(axis_name="d")

    @jax.jit
    @functools.partial(jax.shard_map, mesh=MESH, in_specs=P("d"), out_specs=P("d"))
    def train(target):
        def outer_step(carry, number):
            rate = jnp.float32(0.1 / (1 + number / 10))

            def inner(_, w):
                return w - rate * (w - target[0])

            own = jax.lax.fori_loop(0, 5, inner, jax.lax.pcast(carry[0], "d", to="varying"))
            return outer.step(own, carry[1]), None

        w = jnp.zeros((12, 300), "float32")
        w = jax.lax.scan(outer_step, (w, outer.init(w)), jnp.arange(300.0))[0][0]
        return jax.lax.pcast(w, "d", to="varying")[None]

    w = np.asarray(train(target))
    assert (w == w[:1]).all()
    optimum = target.mean(0)
    assert np.linalg.norm(w[0] - optimum) < off * np.linalg.norm(optimum)


# --- Streaming ---


def test_streaming_matches_its_definition():
    """Compared with algorithm 2 of Douillard et al. 2025, step by step."""
    every, delay, mixing = 6, 2, 0.25
    outer = optim.diloco(**ON_MESH)
    streaming = optim.Streaming(outer, every, 3, delay, mixing, name="definition")
    params, state = rows(start()), streaming.init(start())
    # The largest leaf alone, then the next, then the last one.
    names = ["kernel", "bias", "scale"]
    own = {name: np.stack([np.float64(x)] * N) for name, x in start().items()}
    anchor = {name: np.float64(x) for name, x in start().items()}
    momentum = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    sent = {}
    for count in range(1, 21):
        params = learnt(params, count)
        params, state = streaming.step(params, state)
        for p, name in enumerate(names):
            own[name] = own[name] + drift(count)[name]
            if (count - 2 * p) % every == 0:
                sent[name] = anchor[name] - own[name].mean(0)
            if (count - 2 * p - delay) % every == 0 and name in sent:
                anchor[name], momentum[name] = nesterov(
                    anchor[name], momentum[name], sent.pop(name)
                )
                own[name] = mixing * own[name] + (1 - mixing) * anchor[name]
            np.testing.assert_allclose(params[name], own[name], atol=1e-5, err_msg=f"{count}")
    params, state = streaming.finish(params, state)
    same_on_all_ranks(params)
    # The first leaf's exchanges began after steps 6, 12 and 18, the second's last one after 20.
    assert state.exchanges.tolist() == [3, 4, 3]
    np.testing.assert_allclose(params["kernel"][0], anchor["kernel"], atol=1e-5)


@pytest.mark.parametrize("at", [9, pytest.param(8, marks=pytest.mark.slow)])
def test_streaming_resumes_from_a_checkpoint_bit_for_bit(tmp_path, at):
    """Also with pending exchanges, which saving completes."""
    orbax = pytest.importorskip("orbax.checkpoint")
    outer = optim.diloco(codec="int4", error_feedback=True, **ON_MESH)

    def new():
        return optim.Streaming(outer, 6, 2, 2, 0.5, name="saved")

    streaming = new()
    params, state = rows(start()), streaming.init(start())
    for count in range(1, 20):
        params, state = streaming.step(learnt(params, count), state)
        if count == at:
            assert (streaming.settle(state).exchanges != state.exchanges).any() == (at == 9)
            saved = {"params": params, "state": streaming.settle(state)}
            with orbax.StandardCheckpointer() as checkpointer:
                checkpointer.save(tmp_path / "checkpoint", saved)
    with orbax.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(tmp_path / "checkpoint", saved)
    streaming = new()
    again, again_state = found["params"], found["state"]
    for count in range(at + 1, 20):
        again, again_state = streaming.step(learnt(again, count), again_state)
    one, other = streaming.settle(again_state), state
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert one.count == other.count == 19


def test_streaming_refuses_a_state_saved_without_settle():
    streaming = optim.Streaming(optim.diloco(**ON_MESH), 4, 1, 2, name="early")
    params, state = rows(start()), streaming.init(start())
    for _ in range(5):
        params, state = streaming.step(params, state)
    other = optim.Streaming(optim.diloco(**ON_MESH), 4, 1, 2, name="early")
    with raises(errors.InvalidArgumentError, "settle(state)"):
        other.step(params, state)


def test_streaming_accepts_donated_parameters():
    """Neither exchanges nor the state use the parameters' memory."""
    streaming = optim.Streaming(optim.local_sgd(**ON_MESH), 2, 1, 1, 0.0, name="donated")
    step = jax.jit(lambda p: jax.tree.map(lambda x: x + 1, p), donate_argnums=0)
    params, state = rows(start()), streaming.init(start())
    for _ in range(8):
        params, state = streaming.step(step(params), state)
    params, state = streaming.finish(step(params), state)
    same_on_all_ranks(step(params))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.fragments))
    # Each result of two steps replaces three, one of which is lost (mixing = 0).
    np.testing.assert_allclose(state.fragments[0].params["['scale']"], start()["scale"] + 5)


@pytest.mark.slow
def test_resize_residuals_preserves_the_mean_of_outer_residuals():
    outer = optim.diloco(codec="int4", error_feedback=True, **ON_MESH)
    params, state = rows(start()), outer.init(start())
    _, state = jax.jit(outer.step)(learnt(params, 0), state)
    fewer = optim.resize_residuals(state, 2)
    assert fewer.exchange.residual["kernel"].shape == (2, *SHAPES["kernel"])
    np.testing.assert_allclose(
        np.mean(fewer.exchange.residual["kernel"], 0),
        np.mean(state.exchange.residual["kernel"], 0),
        atol=1e-6,
    )
    assert fewer.params["kernel"].shape == SHAPES["kernel"]

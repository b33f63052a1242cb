"""`jaxccomp.optim` between processes: jitted, donated, scanned."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import patience
import pytest

import jaxccomp as jcc

optax = pytest.importorskip("optax")


def gradients(rank, steps):
    keys = jax.random.split(jax.random.key(rank))
    return {
        "kernel": jax.random.normal(keys[0], (steps, 60, 50), "float32"),
        "bias": jax.random.normal(keys[1], (steps, 50), "bfloat16"),
        "count": jnp.full(steps, rank),
    }


def test_state_is_a_pytree_for_jit_scan_and_donation(world):
    """The steps' sum is complete, for jitted, scanned and donated states."""
    steps = 5
    optimizer = jcc.optim.allreduce_gradients("sum", codec="onebit", error_feedback=True)
    grads = gradients(world.rank, steps)
    state = optimizer.init(jax.tree.map(lambda g: g[0], grads))
    assert isinstance(state, jcc.optim.FeedbackState)
    assert state.residual["count"] is None

    first = jax.jit(optimizer.update, donate_argnums=1)
    start = state
    reduced, state = first(jax.tree.map(lambda g: g[0], grads), start)
    assert start.residual["kernel"].is_deleted()
    assert jax.tree.structure(state) == jax.tree.structure(start)

    @jax.jit
    def others(grads, state):
        def step(state, grads):
            reduced, state = optimizer.update(grads, state)
            return state, reduced

        return jax.lax.scan(step, state, grads)

    state, more = others(jax.tree.map(lambda g: g[1:], grads), state)
    total = jax.tree.map(lambda one, rest: one + rest.sum(axis=0), reduced, more)
    residuals = jcc.allgather(state.residual)
    for name, tolerance in (("kernel", 1e-4), ("bias", 0.2)):
        exact = sum(np.float32(gradients(rank, steps)[name]).sum(0) for rank in range(world.size))
        expected = exact - np.float32(residuals[name]).sum(axis=0)
        np.testing.assert_allclose(np.float32(total[name]), expected, atol=tolerance)
    assert total["count"] == steps * sum(range(world.size))


def test_training_with_feedback_keeps_parameters_equal_on_all_ranks(world, ranks):
    """Ranks have different minima; training finds the common one."""
    center = jnp.float32(world.rank) + jnp.linspace(-1, 1, 300, dtype="float32")
    optimizer = optax.chain(
        jcc.optim.allreduce_gradients(codec="topk:density=0.05", error_feedback=True),
        optax.sgd(optax.exponential_decay(0.05, 100, 0.5)),
    )

    @jax.jit
    def descend(params, state):
        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(params - center, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, state), length=500)[0]

    params = jnp.zeros(300, "float32")
    params, _ = descend(params, optimizer.init(params))
    assert len(set(ranks.allgather(np.asarray(params).tobytes()))) == 1
    best = jcc.allreduce(center, "mean")
    assert jnp.linalg.norm(params - best) < 0.02 * jnp.linalg.norm(best)


def test_allreduce_gradients_averages_over_a_split_communicator(world):
    part = world.split(world.rank % 2)
    optimizer = jcc.optim.allreduce_gradients(codec="lossless", comm=part)
    updates, _ = optimizer.update(jnp.float32(world.rank), optimizer.init(None))
    assert updates == np.mean([r for r in range(world.size) if r % 2 == world.rank % 2])


def test_feedback_sends_as_many_bytes_as_allreduce(world):
    x = gradients(world.rank, 1)["kernel"][0]

    def sent(function):
        jcc.stats.reset()
        result = jax.block_until_ready(jax.jit(function)(x))
        return result, jcc.stats.get().total.sent_bytes

    how = {"codec": "onebit", "comm": world.ordered()}
    (reduced, lost), ours = sent(
        lambda x: jcc.allreduce_with_feedback(x, jnp.zeros_like(x), "sum", **how)
    )
    expected, plain = sent(lambda x: jcc.allreduce(x, **how))
    np.testing.assert_array_equal(reduced, expected)
    assert ours == plain
    missing = jcc.allreduce(x) - reduced
    np.testing.assert_allclose(missing, jcc.allreduce(lost), atol=1e-4)


def test_bucket_does_not_wait_for_an_earlier_bucket(world, ranks, tmp_path):
    """The first bucket ends only after the gradients of the last one have been computed.

    XLA would otherwise use the memory of the first bucket for the last gradients.
    """
    layers = 4
    params = {f"layer_{i}": 0.5 * jnp.eye(512, dtype="float32") for i in range(layers)}
    x = jax.random.normal(jax.random.key(world.rank), (64, 512), "float32")
    optimizer = jcc.optim.allreduce_gradients(bucket_bytes=512 * 512 * 4)
    state = optimizer.init(params)
    computed = pathlib.Path(ranks.allgather(str(tmp_path / "computed"))[0])

    def loss(params):
        y = x
        for i in range(layers):
            y = jnp.tanh(y @ params[f"layer_{i}"])
        return jnp.mean(y**2)

    def wait(value):
        if world.rank > 0:
            assert patience.wait_for(computed.exists, 30), "rank 0 waits for the first bucket"
        return np.zeros_like(value)

    def tell(value):
        if world.rank == 0:
            computed.touch()
        return np.zeros_like(value)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params):
        grads = jax.grad(loss)(params)
        for name, callback in ((f"layer_{layers - 1}", wait), ("layer_0", tell)):
            value = grads[name][0, 0]
            grads[name] += jax.pure_callback(callback, value, value)
        updates, _ = optimizer.update(grads, state)
        return optax.apply_updates(params, jax.tree.map(lambda g: -0.1 * g, updates))

    jcc.stats.reset()
    jax.block_until_ready(step(params))
    assert jcc.stats.get().operations["allreduce"].calls == layers


@pytest.mark.parametrize("how", [{}, {"codec": "onebit", "error_feedback": True}])
def test_train_step_reduces_the_loss_and_keeps_ranks_equal(world, how):
    random = np.random.default_rng(world.rank)
    x = random.normal(size=(32, 20)).astype(np.float32)
    y = np.tanh(x @ np.linspace(-1, 1, 20)).astype(np.float32)
    init, step = jcc.optim.train_step(
        lambda params, x, y: jnp.mean((jnp.tanh(x @ params["w"]) - y) ** 2), optax.sgd(0.2), **how
    )
    params, state = init({"w": jnp.full(20, 0.1 * world.rank, "float32")})
    values = []
    for _ in range(100):
        params, state, value = step(params, state, x, y)
        values.append(float(value))
    assert values[-1] < 0.2 * values[0]
    everyone = np.asarray(jcc.allgather(params["w"]))
    assert (everyone == everyone[0]).all()
    assert (np.asarray(jcc.allgather(jnp.float32(values[-1]))) == np.float32(values[-1])).all()


def test_gather_state_and_place_state_are_inverse():
    """A checkpoint has the residuals of all ranks; each rank gets its own back."""
    world = jcc.world()
    optimizer = optax.chain(
        jcc.optim.allreduce_gradients(codec="int4", error_feedback=True), optax.adam(0.1)
    )
    params = {"w": jnp.zeros(5, jnp.float32), "b": jnp.zeros((), jnp.float32)}
    state = optimizer.init(params)
    mine = jax.tree.map(lambda p: jnp.full_like(p, world.rank + 1), params)
    state = (state[0]._replace(residual=mine), *state[1:])
    whole = jcc.optim.gather_state(state, root=world.size - 1)
    shapes = jcc.optim.state_shapes(optimizer, params, world.size)
    assert jax.tree.map(jnp.shape, whole) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    rows = np.arange(1, world.size + 1) if world.rank == world.size - 1 else np.zeros(world.size)
    np.testing.assert_array_equal(whole[0].residual["b"], rows)

    whole = jcc.sync.replicate(whole, root=world.size - 1)
    placed = jcc.optim.place_state(whole)
    jax.tree.map(np.testing.assert_array_equal, placed, state)
    half = jcc.world().split(world.rank % 2)
    placed = jcc.optim.place_state(whole, comm=half, op="sum")
    total = jcc.allreduce(placed[0].residual["b"], comm=half)
    assert float(total) == world.size * (world.size + 1) / 2  # nothing is lost

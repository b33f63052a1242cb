"""Training steps in one call, with models of linen and nnx, along an axis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxccomp import errors, optim
from jaxccomp._native import engine

optax = pytest.importorskip("optax")
nn = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
pytestmark = pytest.mark.skipif(not engine.available(), reason="needs the native engine")

N = 4
X = np.random.default_rng(0).normal(size=(64, 30)).astype(np.float32)
Y = np.tanh(X @ np.linspace(-1, 1, 30)).astype(np.float32)


def mesh():
    return jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=np.array(jax.devices()[:N]))


def trained(loss, params, steps=200, momentum=0.0, **how):
    optimizer = optax.sgd(0.1, momentum)
    init, step = optim.train_step(loss, optimizer, axis_name="d", mesh=mesh(), **how)
    params, state = init(params)
    values = []
    for _ in range(steps):
        params, state, value = step(params, state, X, Y)
        values.append(float(value))
    return params, state, values


def of_linen():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(40, param_dtype="float32")(x)
            return nn.Dense(1, param_dtype="float32")(jnp.tanh(x))[:, 0]

    model = Model()
    params = model.init(jax.random.key(0), X)
    return lambda params, x, y: jnp.mean((model.apply(params, x) - y) ** 2), params


def of_nnx():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(30, 40, rngs=rngs)
            self.head = nnx.Linear(40, 1, rngs=rngs)

        def __call__(self, x):
            return self.head(jnp.tanh(self.hidden(x)))[:, 0]

    graph, params = nnx.split(Model(nnx.Rngs(0)), nnx.Param)
    return lambda params, x, y: jnp.mean((nnx.merge(graph, params)(x) - y) ** 2), params


@pytest.mark.parametrize("model", [of_linen, pytest.param(of_nnx, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"codec": "int8", "bucket_bytes": 2048},
        {"codec": "onebit", "error_feedback": True},
        {
            "codec": "bf16",
            "error_feedback": True,
            "policy": [optim.Rule("topk:density=0.1", pattern="*kernel*", from_step=10)],
        },
    ],
    ids=["raw", "int8", "onebit", "policy"],
)
def test_train_step_reduces_the_loss_of_flax_models(model, how):
    values = trained(*model(), **how)[2]
    assert values[-1] < 0.2 * values[0]


def test_uncompressed_train_step_equals_training_on_the_whole_batch():
    loss, params = of_linen()
    expected, optimizer = params, optax.sgd(0.1, momentum=0.9)
    state = optimizer.init(params)
    for _ in range(5):
        updates, state = optimizer.update(jax.grad(loss)(expected, X, Y), state)
        expected = optax.apply_updates(expected, updates)
    got, _, values = trained(loss, params, steps=5, momentum=0.9)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values[0], loss(params, X, Y), rtol=1e-5)


def test_train_step_requires_mesh_and_axis_name_together():
    for how in ({"axis_name": "d"}, {"mesh": mesh()}):
        with raises(errors.InvalidArgumentError, "axis_name=", "mesh="):
            optim.train_step(lambda params: 0.0, optax.sgd(0.1), **how)


def noisy(params, x, key, scale):
    """A loss with a key and a number beside the batch."""
    noise = jax.random.normal(jax.random.fold_in(key, jax.lax.axis_index("d")))
    return jnp.mean(x @ params["w"]) * scale + noise


def test_prng_keys_and_scalars_are_replicated():
    params = {"w": jnp.ones(30)}
    init, step = optim.train_step(noisy, optax.sgd(0.1), axis_name="d", mesh=mesh())
    key = jax.random.key(1)
    value = step(*init(params), X, key, 2.0)[2]
    noise = np.mean([jax.random.normal(jax.random.fold_in(key, i)) for i in range(N)])
    np.testing.assert_allclose(value, 2 * X.sum(1).mean() + noise, rtol=1e-5)


def test_batch_that_the_device_count_does_not_divide_is_refused():
    init, step = optim.train_step(noisy, optax.sgd(0.1), axis_name="d", mesh=mesh())
    for batch in ((X[:6], jax.random.key(1), 2.0), (X, jax.random.PRNGKey(1), 2.0)):
        with raises(errors.InvalidArgumentError, "4 devices", "batch"):
            step(*init({"w": jnp.ones(30)}), *batch)


def test_auxiliary_output_has_a_row_for_each_device():
    def loss(params, x):
        value = jnp.mean(x @ params["w"])
        return value, {"value": value, "count": len(x), "first": x[0], "none": None}

    init, step = optim.train_step(
        loss, optax.sgd(0.1), axis_name="d", mesh=mesh(), has_aux=True, codec="int8"
    )
    _, _, value, aux = step(*init({"w": jnp.ones(30)}), X)
    rows = X.reshape(N, len(X) // N, 30)
    np.testing.assert_allclose(aux["value"], rows.sum(2).mean(1), rtol=1e-5)
    np.testing.assert_allclose(value, np.mean(aux["value"]), rtol=1e-5)
    np.testing.assert_array_equal(aux["count"], [len(X) // N] * N)
    np.testing.assert_array_equal(aux["first"], rows[:, 0])


def test_auxiliary_output_between_processes_is_the_local_one():
    init, step = optim.train_step(
        lambda params, x: (jnp.mean(x @ params), x[0]), optax.sgd(0.1), has_aux=True
    )
    _, _, _, aux = step(*init(jnp.ones(30)), X)
    np.testing.assert_array_equal(aux, X[0])


def step_on_devices(optimizer, params):
    """One step as a program writes it with `state_specs`."""
    specs = optim.state_specs(optimizer, params, "d")

    def loss(params, x):
        return jnp.mean((x @ params["w"] + params["b"]) ** 2)

    def on_device(params, state, x):
        own = jax.lax.pcast(params, "d", to="varying")
        gradients = jax.grad(loss)(own, x)
        updates, state = optimizer.update(gradients, optim.unstack_residuals(state), params)
        return optax.apply_updates(params, updates), optim.stack_residuals(state)

    step = jax.shard_map(
        on_device,
        mesh=mesh(),
        in_specs=(P(), specs, P("d")),
        out_specs=(P(), specs),
    )
    start = jax.shard_map(
        lambda params: optim.stack_residuals(optimizer.init(params)),
        mesh=mesh(),
        in_specs=P(),
        out_specs=specs,
    )
    return jax.jit(step)(params, jax.jit(start)(params), X)[0]


PAIR = {"w": jnp.ones(30), "b": jnp.zeros(())}


@pytest.mark.parametrize("how", [{}, {"codec": "int8", "error_feedback": True}])
def test_multi_steps_around_the_exchange_is_refused_with_the_remedy(how):
    exchange = optim.allreduce_gradients(axis_name="d", **how)

    def accumulated(*transformations):
        return optax.MultiSteps(optax.chain(*transformations), 2).gradient_transformation()

    with raises(errors.InvalidArgumentError, "optax.MultiSteps"):
        step_on_devices(accumulated(exchange, optax.sgd(0.1)), PAIR)
    params = step_on_devices(optax.chain(exchange, accumulated(optax.sgd(0.1))), PAIR)
    np.testing.assert_array_equal(params["w"], PAIR["w"])  # the first of two steps


@pytest.mark.parametrize("how", [{}, {"codec": "int8", "error_feedback": True}])
def test_optax_partition_around_exchanges_equals_one_exchange(how):
    """Each part has an exchange of its own."""
    exchange = optim.allreduce_gradients(axis_name="d", **how)
    parts = {name: optax.chain(exchange, optax.sgd(0.1)) for name in ("w", "b")}
    params = step_on_devices(optax.partition(parts, {"w": "w", "b": "b"}), PAIR)
    expected = step_on_devices(optax.chain(exchange, optax.sgd(0.1)), PAIR)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)

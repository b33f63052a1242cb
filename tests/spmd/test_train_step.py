"""Training steps in one call, with models of linen and nnx, along an axis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

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
def test_models_learn(model, how):
    values = trained(*model(), **how)[2]
    assert values[-1] < 0.2 * values[0]


def test_raw_is_training_on_the_whole_batch():
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


def test_an_axis_needs_its_mesh():
    for how in ({"axis_name": "d"}, {"mesh": mesh()}):
        with pytest.raises(errors.InvalidArgumentError, match="go together"):
            optim.train_step(lambda params: 0.0, optax.sgd(0.1), **how)

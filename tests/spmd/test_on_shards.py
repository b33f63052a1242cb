"""`on_shards` reduces and compresses each shard of other axes, without gathering."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import errors
from jaxccomp._native import engine

ROWS, COLUMNS = 2, 4
BACKENDS = ["xla"] + (["native"] if engine.available() else [])
SPECS = {"w": P(None, "m"), "b": P("m")}


def mesh_of(order=None):
    devices = np.array(jax.devices()[: ROWS * COLUMNS])
    devices = devices if order is None else devices[list(order)]
    shape = (ROWS, COLUMNS)
    return jax.make_mesh(shape, ("d", "m"), (AxisType.Auto,) * 2, devices=devices)


def problem(mesh):
    rng = np.random.default_rng(0)
    params = {
        "w": rng.normal(size=(64, 256)).astype(np.float32) * 0.1,
        "b": rng.normal(size=256).astype(np.float32),
    }
    x = rng.normal(size=(32, 64)).astype(np.float32)
    y = rng.normal(size=(32, 256)).astype(np.float32)
    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    return jax.device_put(params, shardings), jax.device_put((x, y), NamedSharding(mesh, P("d")))


def gradients(params, batch):
    """Returns each device's own gradients along "d"."""
    x, y = batch

    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) - y) ** 2)

    return jax.grad(loss)(lax.pcast(params, "d", to="varying"))


def stepping(reduce):
    def step(params, batch):
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, reduce(gradients(params, batch)))

    return step


def mean(backend, codec):
    how = {"axis_name": "d", "backend": backend, "codec": codec}
    return functools.partial(jcc.allreduce, op="mean", **how)


def collectives(function, *args):
    """Returns (operation, shape) of each collective in the compiled program."""
    kinds = r"all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|custom-call"
    text = function.lower(*args).compile().as_text()
    found = re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", text)
    return [(kind, shape) for shape, kind in found if "sdy" not in shape]


@pytest.mark.parametrize("order", [None, (3, 1, 2, 0, 7, 6, 4, 5)], ids=["in_order", "mixed"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_on_shards_gathers_nothing_and_returns_equal_values(backend, order):
    mesh = mesh_of(order)
    params, batch = problem(mesh)
    reduce = jcc.on_shards(mean(backend, "lossless"), SPECS, SPECS)
    step = jax.jit(jcc.data_parallel(stepping(reduce), "d", mesh=mesh))
    plain = jcc.data_parallel(stepping(functools.partial(lax.pmean, axis_name="d")), "d", mesh=mesh)
    got = step(params, batch)
    for name, expected in jax.jit(plain)(params, batch).items():
        np.testing.assert_array_equal(got[name], expected)
    travels = collectives(step, params, batch)
    assert not [each for each in travels if each[0] == "all-gather"], travels
    # A quarter of w on each device.
    assert any("f32[64,64]" in shape for _, shape in travels), travels
    assert not any("f32[64,256]" in shape for _, shape in travels), travels


@pytest.mark.skipif(not engine.available(), reason="needs the native engine")
def test_without_on_shards_xla_gathers():
    """The reason for on_shards: it is unnecessary once XLA no longer gathers here."""
    mesh = mesh_of()
    params, batch = problem(mesh)
    step = jax.jit(jcc.data_parallel(stepping(mean("native", "lossless")), "d", mesh=mesh))
    assert ("all-gather", "f32[64,256]{1,0}") in [
        (kind, re.sub(r"\{.*", "{1,0}", shape)) for kind, shape in collectives(step, params, batch)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_codec_and_residual_of_on_shards_have_the_shape_of_shards(backend):
    """Gives the same bits as a shard_map over both axes."""
    mesh = mesh_of()
    params, batch = problem(mesh)
    average = jcc.optim.allreduce_gradients(
        codec="int4", error_feedback=True, axis_name="d", backend=backend
    )
    state_specs = jcc.optim.FeedbackState(SPECS)
    specs = (SPECS, state_specs)

    def two_steps(update, grads):
        state = jcc.optim.FeedbackState(jax.tree.map(jnp.zeros_like, grads))
        first, state = update(grads, state)
        second, _ = update(grads, state)
        return first, second

    def step(params, batch):
        update = jcc.on_shards(average.update, specs, specs)
        return two_steps(update, gradients(params, batch))

    got = jax.jit(jcc.data_parallel(step, "d", mesh=mesh))(params, batch)

    def own(grads):
        return two_steps(average.update, jax.tree.map(lambda g: g[0], grads))

    def rows(params, batch):
        return jax.tree.map(lambda g: g[None], gradients(params, batch))

    each = jax.jit(
        jax.shard_map(rows, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"), axis_names={"d"})
    )(params, batch)
    in_specs = {"w": P("d", None, "m"), "b": P("d", "m")}
    both = jax.shard_map(own, mesh=mesh, in_specs=(in_specs,), out_specs=(SPECS, SPECS))
    expected = jax.jit(both)(each)
    for number in range(2):
        for name in SPECS:
            np.testing.assert_array_equal(got[number][name], expected[number][name])
    assert not np.array_equal(got[0]["w"], got[1]["w"])  # the residual was added


@pytest.mark.skipif(not engine.available(), reason="needs the native engine")
def test_compress_replaces_collectives_inside_on_shards():
    mesh = mesh_of()
    params, batch = problem(mesh)
    reduce = jcc.on_shards(functools.partial(lax.pmean, axis_name="d"), SPECS, SPECS)
    plain = jcc.data_parallel(stepping(reduce), "d", mesh=mesh)
    compressed = jax.jit(jcc.compress(plain, "lossless", backend="native"))
    expected, got = jax.jit(plain)(params, batch), compressed(params, batch)
    for name in SPECS:
        np.testing.assert_array_equal(got[name], expected[name])
    travels = collectives(compressed, params, batch)
    assert not [each for each in travels if each[0] == "all-gather"], travels
    assert any(kind == "custom-call" and "f32[64,64]" in shape for kind, shape in travels), travels


def test_on_shards_requires_shard_map_and_accepts_manual_axes():
    mesh = mesh_of()
    x = np.arange(64.0).reshape(8, 8)

    def body(x):
        return jcc.on_shards(lambda x: lax.psum(x, "d"), P(None, "m"), P(None, "m"))(x)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("d", "m"), out_specs=P(None, "m"))
    np.testing.assert_array_equal(jax.jit(mapped)(x), x[:4] + x[4:])
    for inside in (body, jax.jit(body)):
        with raises(
            errors.InvalidArgumentError, "on_shards", "jaxccomp.data_parallel", "jax.shard_map"
        ):
            inside(x)


def test_on_shards_supports_grad_and_vmap():
    mesh = mesh_of()
    x = np.arange(64.0).reshape(8, 8)

    def body(x):
        total = jcc.on_shards(lambda x: jcc.allreduce(x, "sum", axis_name="d"), P("m"), P("m"))

        def loss(x):
            return (jax.vmap(total, in_axes=1, out_axes=1)(x) ** 2).sum()

        return jax.grad(loss)(x)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), axis_names={"d"})
    expected = 2 * np.tile(x[:4] + x[4:], (2, 1))
    np.testing.assert_array_equal(jax.jit(mapped)(x), expected)

"""States with residuals, saved and restored, on the same or another number of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxccomp import errors, optim
from jaxccomp._native import engine

optax = pytest.importorskip("optax")
orbax = pytest.importorskip("orbax.checkpoint")
pytestmark = pytest.mark.skipif(not engine.available(), reason="needs the native engine")

PARAMS = {"w": jnp.zeros(1000, "float32"), "b": jnp.zeros(3, "float32")}
OPTIMIZER = optax.chain(
    optim.allreduce_gradients(codec="topk:density=0.05", error_feedback=True, axis_name="d"),
    optax.sgd(0.1, momentum=0.5),
)


class Run:
    """Training steps on ``ranks`` devices, from a given state or from the start."""

    def __init__(self, ranks):
        devices = np.array(jax.devices()[:ranks])
        self.ranks = ranks
        self.mesh = jax.make_mesh((ranks,), ("d",), (AxisType.Auto,), devices=devices)
        self.specs = optim.state_specs(OPTIMIZER, PARAMS, "d")

        def start():
            return optim.stack_residuals(OPTIMIZER.init(PARAMS))

        def step(params, state, grads):
            grads = jax.tree.map(lambda g: g[0], grads)
            updates, state = OPTIMIZER.update(grads, optim.unstack_residuals(state), params)
            return optax.apply_updates(params, updates), optim.stack_residuals(state)

        self.start = self.mapped(start, (), self.specs)
        self.step = self.mapped(step, (P(), self.specs, P("d")), (P(), self.specs))

    def mapped(self, function, in_specs, out_specs):
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)
        return jax.jit(mapped)

    def placed(self, params, state):
        shardings = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self.specs)
        everywhere = NamedSharding(self.mesh, P())
        return jax.device_put(params, everywhere), jax.device_put(state, shardings)

    def gradients(self, seed):
        random = np.random.default_rng(seed)
        return jax.tree.map(
            lambda p: random.standard_normal((self.ranks, *p.shape)).astype(np.float32), PARAMS
        )


def saved(path, params, state):
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, {"params": params, "state": state})


def saved_after_three_steps(run, path):
    params, state = PARAMS, run.start()
    for number in range(3):
        params, state = run.step(params, state, run.gradients(number))
    saved(path, params, state)
    return params, state


def restored(path, params, state):
    with orbax.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(path, {"params": params, "state": state})
    return found["params"], found["state"]


def residuals(state):
    return jax.tree.map(np.asarray, state[0].residual)


def test_restored_run_continues_bit_for_bit(tmp_path):
    run = Run(4)
    params, state = saved_after_three_steps(run, tmp_path / "checkpoint")
    expected = run.step(params, state, run.gradients(3))
    params, state = run.placed(*restored(tmp_path / "checkpoint", PARAMS, run.start()))
    got = run.step(params, state, run.gradients(3))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize(
    "ranks", [2, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))]
)
def test_restored_residuals_deliver_all_values_on_another_device_count(tmp_path, ranks):
    run = Run(4)
    params, state = saved_after_three_steps(run, tmp_path / "checkpoint")
    before = residuals(state)
    assert np.abs(before["w"]).max() > 0.1

    other = Run(ranks)
    params, state = restored(tmp_path / "checkpoint", PARAMS, jax.tree.map(jnp.zeros_like, state))
    params, state = other.placed(params, optim.resize_residuals(state, ranks))
    after = residuals(state)
    for name in PARAMS:
        assert after[name].shape == (ranks, *PARAMS[name].shape)
        np.testing.assert_allclose(after[name].mean(0), before[name].mean(0), atol=1e-6)
    # With zero gradients, the delayed values still arrive.
    zeros = jax.tree.map(jnp.zeros_like, other.gradients(0))
    start = np.asarray(params["w"])
    for _ in range(60):
        params, state = other.step(params, state, zeros)
    assert np.abs(residuals(state)["w"]).max() < 1e-6
    momentum = np.asarray(
        restored(tmp_path / "checkpoint", PARAMS, run.start())[1][1][0].trace["w"]
    )
    coming = -0.1 * (before["w"].mean(0) + 0.5 * momentum) / (1 - 0.5)
    np.testing.assert_allclose(params["w"] - start, coming, atol=1e-4)


def test_resize_residuals_preserves_sums():
    state = optim.FeedbackState({"w": jnp.arange(12.0).reshape(4, 3)})
    for ranks in (1, 2, 3, 5):
        rows = optim.resize_residuals(state, ranks, "sum").residual["w"]
        assert rows.shape == (ranks, 3)
        np.testing.assert_allclose(rows.sum(0), [18, 22, 26])
    with raises(errors.UnknownNameError, "resize_residuals", "'max'", "'mean', 'sum'"):
        optim.resize_residuals(state, 2, "max")
    with raises(errors.InvalidArgumentError, "resize_residuals", "ranks", "1", "0"):
        optim.resize_residuals(state, 0)


@pytest.mark.parametrize("ranks", [4, 3])
def test_checkpoint_manager_restores_and_places_a_state(tmp_path, ranks):
    """The recipe of docs/checkpoints.md: shapes to restore, then each rank's part."""
    run = Run(4)
    params, state = saved_after_three_steps(run, tmp_path / "checkpoint")
    other = Run(ranks)
    shapes = optim.state_shapes(OPTIMIZER, PARAMS, 4, mesh=other.mesh)
    everywhere = NamedSharding(other.mesh, P())
    like = jax.tree.map(
        lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=everywhere), PARAMS
    )
    params, found = restored(tmp_path / "checkpoint", like, shapes)
    placed = optim.place_state(found, axis_name="d", mesh=other.mesh)
    expected = optim.resize_residuals(jax.tree.map(np.asarray, state), ranks)
    jax.tree.map(np.testing.assert_array_equal, placed, expected)
    for leaf, spec in zip(jax.tree.leaves(placed), jax.tree.leaves(other.specs), strict=True):
        assert leaf.sharding.is_equivalent_to(NamedSharding(other.mesh, spec), leaf.ndim)
    other.step(params, placed, other.gradients(3))


def test_a_state_of_one_process_is_gathered_and_placed():
    optimizer = optax.chain(
        optim.allreduce_gradients(codec="int4", error_feedback=True), optax.sgd(0.1, momentum=0.5)
    )
    state = optimizer.init(PARAMS)
    whole = optim.gather_state(state)
    shapes = optim.state_shapes(optimizer, PARAMS, 1)
    assert jax.tree.map(jnp.shape, whole) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    jax.tree.map(np.testing.assert_array_equal, optim.place_state(whole), state)
    exact = optax.sgd(0.1).init(PARAMS)
    assert optim.gather_state(exact) == exact  # without residuals nothing is gathered


def test_invalid_arguments_of_checkpoint_functions_raise():
    state = optim.FeedbackState({"w": jnp.zeros((4, 3))})
    with raises(errors.InvalidArgumentError, "place_state", "axis_name=", "mesh="):
        optim.place_state(state, axis_name="d")
    with raises(errors.InvalidArgumentError, "state_shapes", "ranks", "1", "0"):
        optim.state_shapes(OPTIMIZER, PARAMS, 0)
    with raises(errors.UnknownNameError, "place_state", "'max'", "'mean', 'sum'"):
        optim.place_state(state, op="max")

"""Non-finite steps and residuals of bfloat16 gradients, between processes."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxccomp as jcc
from jaxccomp import optim
from jaxccomp.optim import _quorum

pytest.importorskip("optax")


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: optim.powersgd(rank=2), (32, 32)),
        (lambda: optim.onebit_adam(1e-2, warmup_steps=4), (64,)),
    ],
    ids=["powersgd", "onebit_adam"],
)
def test_nonfinite_gradient_makes_one_nonfinite_step_on_all_ranks(world, make, shape, value):
    transformation = make()
    params = jnp.ones(shape)
    update = jax.jit(transformation.update)
    state = transformation.init(params)
    finite = []
    for number in range(8):
        grads = jax.random.normal(jax.random.key(10 * number + world.rank), shape)
        if number in (1, 5) and world.rank == world.size - 1:
            grads = grads.at[0].set(value)
        updates, state = update(grads, state, params)
        finite.append(np.isfinite(updates).mean())
    assert finite == [1, 0, 1, 1, 1, 0, 1, 1]


@pytest.mark.parametrize("exclude", [False, True])
def test_quorum_step_with_nonfinite_values_is_skipped_or_excludes_the_rank(
    world, monkeypatch, exclude
):
    """All ranks take part; tests/ucx/test_quorum.py tests the selection of participants."""

    def all_of_them(comm, name, done, *rest):
        return types.SimpleNamespace(comm=world, some_behind=False, root=0, done=done)

    monkeypatch.setattr(_quorum, "participants", all_of_them)
    quorum = optim.Quorum(optim.diloco(codec="int4", exclude_nonfinite=exclude))
    params = {"w": jnp.ones((4, 70), "float32")}
    state = quorum.init(params)
    for number in range(4):
        before = state
        moved = jax.tree.map(lambda x, add=number + world.rank: x + add, params)
        if number == 1 and world.rank == 0:
            moved["w"] = moved["w"].at[0, 3].set(np.inf)
        params, state = quorum.step(moved, state)
        assert int(state.count) == number + 1
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
        if number == 1 and (not exclude or world.size == 1):
            assert np.isnan(params["w"]).all()
            jax.tree.map(np.testing.assert_array_equal, state.outer, before.outer)
            params = state.outer.params
        everyone = np.asarray(jcc.allgather(params["w"]))
        assert np.isfinite(everyone).all() and (everyone == everyone[0]).all()


@pytest.mark.parametrize("codec", ["topk:density=0.0117", "int2", "ternary", "tbq"])
def test_small_constant_part_of_bfloat16_gradients_is_delivered(world, codec):
    """With residuals in bfloat16, `topk` would deliver only 9 % of it."""
    steps = 600
    grads = jnp.full(256, 2.0**-9, jnp.bfloat16).at[:3].set(1.0)
    average = optim.allreduce_gradients(codec=codec, error_feedback=True)
    start = average.init(grads)

    def step(carry, _):
        total, state = carry
        mean, state = average.update(grads, state)
        return (total + mean.astype(jnp.float32), state), None

    run = jax.jit(lambda: jax.lax.scan(step, (jnp.zeros(256), start), length=steps)[0])
    total, state = run()
    assert state.residual.dtype == jnp.float32
    arrived = float(total[200]) + float(jcc.allreduce(state.residual, "mean")[200])
    assert arrived == pytest.approx(steps * 2.0**-9, rel=1e-3)

"""Outer steps between processes: any codec, any communicator, and overlapping inner steps."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import patience
import pytest
from golden_errors import raises

import jaxccomp as jcc
from jaxccomp import optim

optax = pytest.importorskip("optax")

START = {"w": np.linspace(-1, 1, 6000, dtype=np.float32), "b": np.ones((3, 5), np.float32)}


def learnt(params, rank, number):
    random = np.random.default_rng((rank, number))
    return {k: x + 0.1 * random.standard_normal(x.shape).astype("f4") for k, x in params.items()}


def same_on_all(params, ranks):
    own = b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(params))
    return len(set(ranks.allgather(own))) == 1


MAKERS = {
    "raw": lambda: optim.diloco(),
    "lossless": lambda: optim.diloco(codec="lossless"),
    "int8": lambda: optim.local_sgd(codec="int8"),
    "int4": lambda: optim.diloco(codec="int4", error_feedback=True),
    "sparse": lambda: optim.sparse_loco(),
}


@pytest.mark.parametrize(
    "maker",
    [pytest.param(name, marks=pytest.mark.slow if name == "sparse" else ()) for name in MAKERS],
)
def test_parameters_are_equal_on_all_ranks_after_each_outer_step(world, ranks, maker):
    outer = MAKERS[maker]()
    step, params = jax.jit(outer.step), START
    state = outer.init(params)
    for number in range(3):
        moved = learnt(params, world.rank, number)
        assert not same_on_all(moved, ranks)
        before = jcc.stats.get().total.sent_bytes
        params, state = step(moved, state)
        jax.block_until_ready(params)
        sent = jcc.stats.get().total.sent_bytes - before
        assert same_on_all(params, ranks) and same_on_all(state.params, ranks)
    dense = 2 * 4 * 6015 * (world.size - 1) / world.size
    most = {"raw": 1.1, "lossless": 1.1, "int8": 0.3, "int4": 0.17, "sparse": 0.02 * world.size}
    assert sent < most[maker] * dense
    if maker in ("raw", "lossless"):
        others = [learnt(START, rank, 0) for rank in range(world.size)]
        first, _ = step(learnt(START, world.rank, 0), outer.init(START))
        for name, x in START.items():
            gradient = x - np.mean([np.float64(other[name]) for other in others], axis=0)
            np.testing.assert_allclose(first[name], x - 0.7 * 1.9 * gradient, atol=1e-5)


def test_outer_steps_accept_a_different_communicator_each(world, ranks):
    """The mean is over the members of the given communicator, as after the loss of a rank."""
    outer = optim.local_sgd()
    step = jax.jit(outer.step, static_argnames="comm")
    part = world.split(0 if world.rank < 2 else None)
    params, state = step(learnt(START, world.rank, 0), outer.init(START), comm=world)
    assert same_on_all(params, ranks)
    if part is not None:
        mine = learnt(params, world.rank, 1)
        both = [learnt(params, rank, 1) for rank in range(part.size)]
        params, state = step(mine, state, comm=part)
        for name in START:
            mean = np.mean([both[0][name], both[-1][name]], axis=0)
            np.testing.assert_allclose(params[name], mean, atol=1e-6)


@pytest.mark.parametrize("maker", ["int4", pytest.param("sparse", marks=pytest.mark.slow)])
def test_concurrent_streaming_steps_keep_outer_parameters_equal(world, ranks, maker):
    """Each of the concurrent `Streaming` objects has its own name."""
    pair = [
        optim.Streaming(MAKERS[maker](), 6, 2, 3, mixing, name=f"outer-{maker}-{mixing}")
        for mixing in (0.5, 0.0)
    ]
    params = [START, START]
    states = [streaming.init(START) for streaming in pair]
    for number in range(15):
        for i, streaming in enumerate(pair):
            moved = learnt(params[i], world.rank, number)
            params[i], states[i] = streaming.step(moved, states[i])
    for i, streaming in enumerate(pair):
        ends, state = streaming.finish(params[i], states[i])
        assert same_on_all(ends, ranks)
        assert same_on_all([part.params for part in state.fragments], ranks)
        assert not same_on_all(params[i], ranks)
        assert state.exchanges.tolist() == [2, 3]


def test_an_exchange_runs_while_inner_steps_compute(world):
    """An exchange that waits for three more inner steps to begin does complete."""
    outer = optim.local_sgd()
    steps, in_time = itertools.count(), []
    begun = entered = 0

    def step_begins(x):
        nonlocal begun
        begun = next(steps)
        return np.asarray(x)

    def wait_for_steps(x):
        nonlocal entered
        before, entered = begun, entered + 1
        in_time.append(patience.wait_for(lambda: begun >= before + 3, 20))
        return jax.tree.map(np.asarray, x)

    def calling(function, x):
        return jax.pure_callback(function, jax.tree.map(jax.typeof, x), x)

    def slow_step(params, state, comm=None):
        return outer.step(calling(wait_for_steps, params), state, comm)

    slow = dataclasses.replace(outer, step=slow_step)
    streaming = optim.Streaming(slow, 6, 1, 5, name="hidden")
    inner = jax.jit(lambda x: calling(step_begins, x) + 1)
    params = jnp.zeros(1000, "float32")
    state = streaming.init(params)
    for number in range(1, 24):  # the last step takes a result
        params = jax.block_until_ready(inner(params))
        params, state = streaming.step(params, state)
        # Otherwise all steps before the result may be over before the exchange begins.
        assert patience.wait_for(lambda: entered >= number // 6, 20), (entered, number)  # noqa: B023
    jax.block_until_ready(params)
    assert len(in_time) >= 3 and all(in_time), in_time
    assert streaming.exchange_seconds > 0


def test_failed_exchange_raises_in_the_step_that_uses_it(world):
    outer = optim.local_sgd()

    def failing(params, state, comm=None):
        raise RuntimeError("no exchange today")

    streaming = optim.Streaming(dataclasses.replace(outer, step=failing), 4, 1, 2, name="failing")
    params, state = START, streaming.init(START)
    for _ in range(5):
        params, state = streaming.step(params, state)
    with raises(RuntimeError, "no exchange today"):
        streaming.step(params, state)

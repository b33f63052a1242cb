"""Registered algorithms between processes: values, and ranks that differ."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import patience
import pytest
from contract import plugin
from golden_errors import raises

import jaxccomp as jcc

colors = itertools.count(7000)


@pytest.fixture(autouse=True)
def nothing_is_registered(monkeypatch):
    plugin.install(monkeypatch)


def values(rank, *shape):
    """Small integers: their sums are exact in any order."""
    return np.random.default_rng(rank).integers(-50, 50, shape).astype(np.float32)


@pytest.mark.parametrize("codec", [None, "bf16", "lossless"])
def test_registered_algorithms_return_right_bits_for_several_tensors(world, codec):
    """Results are bitwise equal, also for several tensors and several chunks."""
    n, rank = world.size, world.rank
    shapes = ((3,), (90, 41), ())
    everything = [[values(10 * r + i, *shape) for i, shape in enumerate(shapes)] for r in range(n)]
    x = [jnp.asarray(leaf) for leaf in everything[rank]]
    how = {"codec": codec}
    for root in {0, n - 1}:
        line = jax.jit(
            lambda v, root=root: jcc.bcast(v, root=root, algorithm="plugin_line:chunk=4096", **how)
        )
        for _ in range(2):
            for got, expected in zip(line(x), everything[root], strict=True):
                np.testing.assert_array_equal(got, expected)
    total = jax.jit(lambda v: jcc.allreduce(v, algorithm="plugin_sum:chunk=4096", **how))(x)
    sums = [np.sum(leaves, axis=0) for leaves in zip(*everything, strict=True)]
    for got, expected in zip(total, sums, strict=True):
        np.testing.assert_array_equal(got, expected)
    rows = [values(100 + r, n, 77) for r in range(n)]
    pairs = jax.jit(lambda v: jcc.alltoall(v, algorithm="plugin_pairs", **how))(rows[rank])
    np.testing.assert_array_equal(pairs, np.stack([row[rank] for row in rows]))


@pytest.mark.parametrize("shape", [(0,), (3,), (5000,), (20, 30)])
def test_registered_algorithm_sends_messages_of_several_or_no_ranges(world, shape):
    n = world.size
    x = values(world.rank, *shape)
    got = jax.jit(lambda v: jcc.bcast((v, v + 1), root=n - 1, algorithm="plugin_grouped"))(x)
    np.testing.assert_array_equal(got[0], values(n - 1, *shape))
    np.testing.assert_array_equal(got[1], values(n - 1, *shape) + 1)


def test_registered_algorithm_supports_feedback_and_gradients(world):
    n, rank = world.size, world.rank
    x = np.random.default_rng(rank).standard_normal(3000).astype(np.float32)
    everything = np.stack(
        [np.random.default_rng(r).standard_normal(3000).astype(np.float32) for r in range(n)]
    )
    step = jax.jit(
        lambda v, r: jcc.allreduce_with_feedback(
            v, r, op="sum", codec="int4", algorithm="plugin_sum:chunk=4096"
        )
    )
    total, residual = step(x, jnp.zeros_like(x))
    residuals = jcc.allreduce(residual)
    np.testing.assert_allclose(total + residuals, everything.sum(axis=0), atol=1e-4 * n)
    assert n == 1 or np.abs(residual).max() > 0
    again, kept = step(x, residual)  # adds the residual of the first step
    np.testing.assert_allclose(
        again + jcc.allreduce(kept), everything.sum(axis=0) + residuals, atol=1e-4 * n
    )
    slope = jax.grad(lambda v: jcc.allreduce(v, algorithm="plugin_sum").sum())(x)
    np.testing.assert_array_equal(slope, np.full_like(x, n))
    # The transpose has no algorithm of this name.
    back = jax.grad(lambda v: jcc.bcast(v, root=0, algorithm="plugin_line").sum())(x)
    np.testing.assert_array_equal(back, np.full_like(x, n if rank == 0 else 0))


def test_ranks_with_different_algorithms_raise(world):
    """Each process registers a correct algorithm, but a different one."""
    if world.size == 1:
        pytest.skip("needs more than one rank")
    comm = world.split(next(colors))

    @jcc.register_algorithm("differs", "bcast")
    def differs(b):
        if b.rank != b.root:
            b.recv(b.root, comm.rank, b.output())
            return
        for peer in set(range(b.ranks)) - {b.root}:
            b.send(peer, comm.rank, b.input())
        b.copy(b.output(), b.input())

    with pytest.raises((jax.errors.JaxRuntimeError, jcc.errors.JaxccompError)) as caught:
        jax.block_until_ready(
            jax.jit(lambda: jcc.bcast(jnp.ones(4), root=0, algorithm="differs", comm=comm))()
        )
    text = str(caught.value)
    assert not patience.at_deadline(text), text
    keys = {word.partition(")")[0] for word in text.split("algorithm=")[1:]}
    assert len(keys) >= 2 and all(key.startswith("differs#") for key in keys), text


def test_wrong_schedule_raises_before_it_sends(world):
    """Each rank raises, and the communicator stays usable."""

    @jcc.register_algorithm("wrong", "bcast")
    def wrong(b):
        if b.rank == b.root and b.ranks > 1:
            b.send((b.rank + 1) % b.ranks, 0, b.input())

    with raises(jcc.errors.ScheduleError, "bcast 'wrong'", f"{world.size} ranks"):
        jcc.bcast(jnp.ones(4), root=0, algorithm="wrong")
    np.testing.assert_array_equal(
        jcc.bcast(jnp.full(4, world.rank), root=world.size - 1), np.full(4, world.size - 1)
    )

"""A registered codec between processes, sent by the engine's operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import own_codec
from golden_errors import raises

import jaxccomp as jcc
from jaxccomp._codecs import table


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(table.CODECS, "_entries", {})
    own_codec.register()


CODECS = ["test_scaled", "test_scaled:block=128|lossless"]


def values(rank, *shape):
    return np.random.default_rng(rank).standard_normal(shape).astype(np.float32)


def close(got, expected, steps=1):
    # One quantisation step of the greatest possible value.
    np.testing.assert_allclose(got, expected, atol=steps * 5 / 7)


@pytest.mark.parametrize("codec", CODECS)
def test_user_codec_results_of_collectives_are_within_its_steps(world, codec):
    n, rank = world.size, world.rank
    everything = np.stack([values(r, 30, 40) for r in range(n)])
    x = jnp.asarray(everything[rank])
    how = {"codec": codec}
    close(jax.jit(lambda v: jcc.bcast(v, root=n - 1, **how))(x), everything[-1])
    close(jax.jit(lambda v: jcc.allreduce(v, **how))(x), everything.sum(axis=0), n + 2)
    close(jax.jit(lambda v: jcc.allgather(v, **how))(x), everything)
    rows = jnp.stack([x + r for r in range(n)])
    close(jax.jit(lambda v: jcc.alltoall(v, **how))(rows), everything + rank, 1 + n)
    reduced = jax.jit(lambda v: jcc.reduce(v, root=0, **how))(x)
    close(reduced, everything.sum(axis=0) * (rank == 0), n + 2)
    close(jax.jit(lambda v: jcc.scan(v, **how))(x), everything[: rank + 1].sum(axis=0), n)


def test_user_codec_supports_operations_with_counts(world):
    codec = CODECS[0]
    n, rank = world.size, world.rank
    counts = [2 * r + 1 for r in range(n)]
    blocks = [values(r, 2 * r + 1, 50) for r in range(n)]
    gathered = np.concatenate(blocks)
    close(jcc.allgatherv(jnp.asarray(blocks[rank]), counts, codec=codec), gathered)
    close(jcc.scatterv(jnp.asarray(gathered), counts, root=0, codec=codec), blocks[rank])
    # The transpose is a reduce_scatterv.
    _, back = jax.vjp(lambda v: jcc.allgatherv(v, counts, codec=codec), jnp.asarray(blocks[rank]))
    close(back(jnp.asarray(gathered))[0], n * blocks[rank], n + 1)
    table = np.array([[(i + 2 * j) % 3 for j in range(n)] for i in range(n)])
    starts = np.cumsum(table, axis=1) - table
    sent = [values(r, int(table[r].sum()), 4) for r in range(n)]
    parts = [sent[r][starts[r, rank] : starts[r, rank] + table[r, rank]] for r in range(n)]
    close(jcc.alltoallv(jnp.asarray(sent[rank]), table, codec=codec), np.concatenate(parts))


@pytest.mark.parametrize("ordered", [False, True])
def test_user_codec_supports_sendrecv_send_and_recv(world, ordered):
    codec = CODECS[ordered]
    n, rank = world.size, world.rank
    comm = world.ordered() if ordered else world
    following, before = (rank + 1) % n, (rank - 1) % n
    tree = {"a": jnp.asarray(values(rank, 300)), "b": jnp.arange(5) + rank}
    expected = {"a": values(before, 300), "b": np.arange(5) + before}

    @jax.jit
    def around(tree):
        return jcc.sendrecv(tree, dest=following, source=before, comm=comm, codec=codec)

    got = around(tree)
    close(got["a"], expected["a"])
    assert (got["b"] == expected["b"]).all()

    @jax.jit
    def one_way(tree):
        kept = jcc.send(tree, dest=following, tag=3, codec=codec)
        return kept, jcc.recv(tree, source=before, tag=3, with_status=True, codec=codec)

    kept, (got, source, tag) = one_way(tree)
    close(got["a"], expected["a"])
    assert (got["b"] == expected["b"]).all()
    assert (kept["a"] == tree["a"]).all()
    assert (int(source), int(tag)) == (before, 3)


def test_user_codec_encodes_the_difference_to_the_delta_base(world):
    """The difference is encoded, so the error is one step of the difference."""
    rank, n = world.rank, world.size
    old = values(100, 5000)
    new = jnp.asarray(old + 1e-3 * values(rank, 5000))
    how = {"ref": jnp.asarray(old), "codec": "test_scaled"}
    got = jax.jit(lambda v: jcc.bcast(v, root=1 % n, **how))(new)
    np.testing.assert_allclose(got, old + 1e-3 * values(1 % n, 5000), atol=1e-3)
    whole = jcc.bcast(jnp.arange(9) + rank, root=0, ref=jnp.arange(9), codec="test_scaled")
    assert (whole == np.arange(9)).all()
    got = jcc.sendrecv(new, dest=(rank + 1) % n, source=(rank - 1) % n, **how)
    np.testing.assert_allclose(got, old + 1e-3 * values((rank - 1) % n, 5000), atol=1e-3)


def test_training_with_a_user_codec_and_feedback_converges(world):
    """Gradient descent on a quadratic converges to the mean of all ranks' targets."""
    targets = np.stack([values(r, 500) for r in range(world.size)])
    target = jnp.asarray(targets[world.rank])

    @jax.jit
    def train(point):
        def step(_, state):
            point, residual = state
            gradient, residual = jcc.allreduce_with_feedback(
                point - target, residual, "mean", codec="test_scaled"
            )
            return point - 0.1 * gradient, residual

        return jax.lax.fori_loop(0, 200, step, (point, jnp.zeros_like(point)))[0]

    reached = train(jnp.zeros(500))
    np.testing.assert_allclose(reached, targets.mean(axis=0), atol=0.2)
    everywhere = jcc.allgather(reached)
    assert (everywhere == everywhere[0]).all()


def test_rank_without_the_codec_raises_on_all_ranks(world):
    """The rank cannot trace the program; the others get its exception, like any other."""
    with raises(ValueError, "'test_other'"):
        jcc.allreduce(jnp.ones(3), codec="test_other")

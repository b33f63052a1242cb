"""Broadcasts of the difference to a reference, between processes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxccomp as jcc

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
COUNT = 100_003
ALGORITHMS = ["auto", "chain", "binomial", "scatter_allgather"]


def weights():
    """Of two steps: one in eight has changed."""
    old = (0.02 * np.random.default_rng(1).standard_normal(COUNT)).astype(jnp.bfloat16)
    bits = old.view(np.uint16).copy()
    bits[::8] ^= 1
    return jnp.asarray(old), jnp.asarray(bits.view(old.dtype))


def same_bits(x, y):
    np.testing.assert_array_equal(np.asarray(x).view(np.uint16), np.asarray(y).view(np.uint16))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("donate", [(), (0,), (1,), (0, 1)])
def test_bits_and_bytes(world, algorithm, donate):
    old, new = weights()
    root = world.size - 1
    mine = new if world.rank == root else jnp.zeros_like(new)

    def sent(program, *arguments, donated=()):
        run = jax.jit(program, donate_argnums=donated)
        jcc.stats.reset()
        result = jax.block_until_ready(run(*arguments))
        same_bits(result, new)
        return jcc.stats.get().operations["bcast"].sent_bytes

    how = {"root": root, "codec": "lossless", "algorithm": algorithm}
    # Each run is given copies that it may overwrite.
    with_ref = sent(
        lambda x, ref: jcc.bcast(x, ref=ref, **how), mine.copy(), old.copy(), donated=donate
    )
    without = sent(lambda x: jcc.bcast(x, **how), mine.copy())
    assert 3 * with_ref <= without


def test_steps_of_training(world):
    """What one broadcast returns is the reference of the next, between programs too."""
    old, _ = weights()
    params = {"w": old, "b": jnp.zeros(5), "none": None}
    step = jax.jit(lambda new, params: jcc.bcast(new, ref=params, codec="lossless"))
    for i in range(5):
        new = jax.tree.map(lambda p, i=i: p + jnp.asarray(0.001 * i, p.dtype), params)
        mine = new if world.rank == 0 else jax.tree.map(jnp.zeros_like, params)
        params = step(mine, params)
        jax.tree.map(np.testing.assert_array_equal, params, new)


@pytest.mark.parametrize("codec", ["bf16", "int8", "fp8_e4m3", "int8|lossless"])
def test_an_error_of_the_difference(world, codec):
    rng = np.random.default_rng(2)
    old = jnp.asarray(rng.standard_normal(COUNT), jnp.float32)
    new = old + jnp.asarray(1e-3 * rng.uniform(-1, 1, COUNT), jnp.float32)
    got = jcc.bcast(new if world.rank == 0 else old, ref=old, codec=codec)
    if world.size > 1:
        np.testing.assert_allclose(got, new, rtol=0, atol=1e-3 / 15)
    same = jcc.allreduce(got, "max") == jcc.allreduce(got, "min")
    assert bool(same.all())

"""Operations with a delta base, between processes: only the difference to it is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises

import jaxccomp as jcc

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
COUNT = 100_003
ALGORITHMS = ["auto", "chain", "binomial", "scatter_allgather"]


def weights():
    """Return the weights of two steps: one value in eight has changed."""
    old = (0.02 * np.random.default_rng(1).standard_normal(COUNT)).astype(jnp.bfloat16)
    bits = old.view(np.uint16).copy()
    bits[::8] ^= 1
    return jnp.asarray(old), jnp.asarray(bits.view(old.dtype))


def same_bits(x, y):
    np.testing.assert_array_equal(np.asarray(x).view(np.uint16), np.asarray(y).view(np.uint16))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("donate", [(), (0,), (1,), (0, 1)])
def test_bcast_with_delta_base_returns_equal_bits_with_fewer_bytes(world, algorithm, donate):
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
    # Each run gets copies that it may overwrite.
    with_ref = sent(
        lambda x, ref: jcc.bcast(x, ref=ref, **how), mine.copy(), old.copy(), donated=donate
    )
    without = sent(lambda x: jcc.bcast(x, **how), mine.copy())
    assert 3 * with_ref <= without


def test_bcast_result_is_the_delta_base_of_the_next_step(world):
    old, _ = weights()
    params = {"w": old, "b": jnp.zeros(5), "none": None}
    step = jax.jit(lambda new, params: jcc.bcast(new, ref=params, codec="lossless"))
    for i in range(5):
        new = jax.tree.map(lambda p, i=i: p + jnp.asarray(0.001 * i, p.dtype), params)
        mine = new if world.rank == 0 else jax.tree.map(jnp.zeros_like, params)
        params = step(mine, params)
        jax.tree.map(np.testing.assert_array_equal, params, new)


@pytest.mark.parametrize("codec", ["bf16", "int8", "fp8_e4m3", "int8|lossless"])
def test_lossy_error_is_relative_to_the_difference(world, codec):
    rng = np.random.default_rng(2)
    old = jnp.asarray(rng.standard_normal(COUNT), jnp.float32)
    new = old + jnp.asarray(1e-3 * rng.uniform(-1, 1, COUNT), jnp.float32)
    got = jcc.bcast(new if world.rank == 0 else old, ref=old, codec=codec)
    if world.size > 1:
        np.testing.assert_allclose(got, new, rtol=0, atol=1e-3 / 15)
    same = jcc.allreduce(got, "max") == jcc.allreduce(got, "min")
    assert bool(same.all())


def bits(x):
    return np.asarray(x).view(np.uint16)


def of_rank(array, rank):
    """Return different values for each rank."""
    return jnp.asarray(np.roll(bits(array), 7 * rank).view(jnp.bfloat16))


@pytest.mark.parametrize("codec", ["delta", "lossless"])
def test_allgather_and_scatter_with_delta_base_return_equal_bits(world, codec):
    old, new = (jnp.stack([of_rank(x, r) for r in range(world.size)]) for x in weights())
    got = jcc.allgather(new[world.rank], ref=old, codec=codec)
    same_bits(got, new)
    # A rank uses only its own row of the delta base.
    mine = jnp.where(jnp.arange(world.size)[:, None] == world.rank, old, 0)
    ref, x = (old, new) if world.rank == 0 else (mine, old)
    same_bits(jcc.scatter(x, 0, ref=ref, codec=codec), new[world.rank])


@pytest.mark.parametrize("in_program_order", [True, False])
def test_sendrecv_with_delta_base_returns_equal_bits(world, in_program_order):
    comm = world.ordered() if in_program_order else world
    n, me = world.size, world.rank
    before = (me - 1) % n
    old, new = weights()
    jcc.stats.reset()
    got = jcc.sendrecv(
        of_rank(new, me),
        dest=(me + 1) % n,
        source=before,
        ref=of_rank(old, me),
        recv_ref=of_rank(old, before),
        codec="delta",
        comm=comm,
    )
    same_bits(got, of_rank(new, before))
    assert jcc.stats.get().operations["sendrecv"].sent_bytes < COUNT / 4


def test_send_and_recv_with_delta_base_return_equal_bits(world):
    """From rank 0 to all others and back; also a leaf that the codec does not support."""
    old, new = ({"w": x, "n": jnp.arange(5) + i} for i, x in enumerate(weights()))
    how = {"codec": "delta", "comm": world.ordered()}

    @jax.jit
    def send(x, ref):
        return [jcc.send(x, dest=r, ref=ref, tag=r, **how) for r in range(1, world.size)]

    @jax.jit
    def recv(ref):
        return jcc.recv(ref, source=0, ref=ref, tag=world.rank, **how)

    if world.rank == 0:
        for sent in send(new, old):
            jax.tree.map(np.testing.assert_array_equal, sent, new)
        for r in range(1, world.size):
            back, source, tag = jcc.recv(
                old, jcc.ANY_SOURCE, ref=new, tag=jcc.ANY_TAG, with_status=True, **how
            )
            assert source == tag and 0 < source < world.size, r
            jax.tree.map(np.testing.assert_array_equal, back, old)
    else:
        got = recv(old)
        jax.tree.map(np.testing.assert_array_equal, got, new)
        jcc.send(old, dest=0, ref=got, tag=world.rank, **how)


def test_invalid_delta_bases_of_messages_raise(world):
    x = jnp.ones(3)
    comm = world.ordered()
    with raises(jcc.errors.InvalidArgumentError, "recv_ref=", "ref="):
        jcc.sendrecv(x, 0, 0, recv_ref=x, codec="delta", comm=comm)
    with raises(jcc.errors.InvalidArgumentError, "ref=", "like="):
        jcc.sendrecv(x, 0, 0, ref=x, like=x, codec="delta", comm=comm)
    with raises(jcc.errors.InvalidArgumentError, "send", "ref=", "codec="):
        jcc.send(x, 0, ref=x, comm=comm)
    with raises(jcc.errors.InvalidArgumentError, "allgather", "ref", "result of x", "[3]"):
        jcc.allgather(x, ref=x, codec="delta")

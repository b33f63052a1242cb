"""Ranks that are told that they share GPUs, over MPI; the engine has no GPU here."""

from functools import partial

import jax
import numpy as np
import pytest

import jaxccomp as jcc
from jaxccomp import comm
from jaxccomp._bootstrap import shared_gpus
from jaxccomp._native import engine

pytestmark = pytest.mark.skipif(
    any(device.platform == "gpu" for device in jax.devices()), reason="JAX has a GPU"
)

COUNT = 3 << 18
BYTES = COUNT * 4


@pytest.fixture
def pairs(world):
    """Ranks share GPUs by twos, as if they had told each other so when they joined."""

    class Core:
        """The engine, with the UUID of a GPU."""

        set_gpus = staticmethod(engine.load().set_gpus)

        @staticmethod
        def cuda_uuids():
            return [(1 << 40, bytes([1 + world.rank // 2]) * 16)]

    share = partial(comm._joined().share_with_all, 60.0)
    shared_gpus.agree(Core, share, [0] * world.size, [1] * world.size)
    yield
    engine.load().set_gpus([])


def operand(rank, dtype=np.float32):
    return (np.arange(COUNT) % 1000 + rank).astype(dtype)


@pytest.mark.parametrize("codec", [None, "lossless"])
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_values(world, pairs, codec, op):
    def f(x):
        return jcc.allreduce(x, op, codec=codec, algorithm="hierarchical:level=gpu")

    everyone = np.stack([operand(rank) for rank in range(world.size)])
    wanted = {"sum": np.sum, "mean": np.mean, "max": np.max}[op](everyone, axis=0)
    np.testing.assert_allclose(jax.jit(f)(operand(world.rank)), wanted, rtol=1e-6)


def test_only_leaders_send_to_other_gpus(world, pairs):
    def f(x):
        return jcc.allreduce(x, codec=None, algorithm="hierarchical:level=gpu")

    jcc.stats.reset()
    jax.block_until_ready(jax.jit(f)(operand(world.rank)))
    gpus = (world.size + 1) // 2
    leads = world.rank % 2 == 0
    alone = world.rank == world.size - 1
    within = BYTES if not leads or not alone else 0
    between = 2 * BYTES * (gpus - 1) // gpus if leads else 0
    if world.size > 1:
        assert jcc.stats.get().operations["allreduce"].sent_bytes == within + between

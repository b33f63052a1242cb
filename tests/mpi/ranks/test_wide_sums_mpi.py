"""Sums between processes: half types are summed in float32, and ranks share randomk's positions."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxccomp as jcc
from jaxccomp._native import algorithms


@pytest.mark.parametrize("algorithm", ["auto", *algorithms.own_names("allreduce")])
def test_half_types_are_summed_in_float32(world, algorithm):
    mean = jcc.allreduce(jnp.full(64, 40000.0, jnp.float16), "mean", algorithm=algorithm)
    np.testing.assert_array_equal(mean, np.full(64, 40000, np.float16))
    own = 2048.0 if world.rank == 0 else 1.0
    total = jcc.allreduce(jnp.full(64, own, jnp.float16), algorithm=algorithm)
    exact = np.float16(2048 + world.size - 1)
    np.testing.assert_array_equal(total, np.full(64, exact))


def test_mpi_backend_sums_half_types_in_float32(world):
    mean = jcc.allreduce(jnp.full(64, 40000.0, jnp.float16), "mean", backend="mpi")
    np.testing.assert_array_equal(mean, np.full(64, 40000, np.float16))


def test_ranks_select_the_same_randomk_positions(world):
    x = np.arange(1.0, 4001.0, dtype=np.float32)
    total = np.asarray(jcc.allreduce(jnp.asarray(x), codec="randomk:density=0.05"))
    kept = total != 0
    assert kept.sum() == (200 if world.size > 1 else 4000)
    np.testing.assert_array_equal(total[kept], world.size * x[kept])

"""The contract between processes: one rank per process, on 1 to 4 of them."""

import functools
import os

import jax
import numpy as np
import pytest
from contract import Batch, ProcessPlace, contexts_at, data, exact, float0, lossy, places_of
from contract.operations import of_style
from contract.selection import ALL, BASIC

import jaxccomp as jcc

RANKS = int(os.environ["JAXCCOMP_TEST_RANKS"])
ALL_RANKS = (1, 2, 3, 4)
pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
OPERATIONS = of_style("process")
# JAX's transformations depend neither on the number of ranks nor on how they join: test all
# contexts only on two ranks of MPI.
ALL_CONTEXTS = ALL or (RANKS == 2 and "JAXCCOMP_TEST_COORDINATOR" not in os.environ)
CASES = [
    pytest.param(row, transform, id=f"{row.name}-{transform.name}")
    for row in OPERATIONS
    for transform in contexts_at(row, RANKS, RANKS, ALL_RANKS)
    if ALL_CONTEXTS or transform.name in BASIC
]
HERE = [row for row in OPERATIONS if RANKS in places_of(row, ALL_RANKS)]


@functools.lru_cache(maxsize=1)  # tests of one batch follow each other
def batch(world, row):
    return Batch(ProcessPlace(world), row)


@pytest.mark.parametrize("row,transform", CASES)
def test_every_operation_matches_numpy_under_transformations(world, row, transform):
    batch(world, row).check(transform)


@pytest.mark.parametrize("row", HERE, ids=lambda row: row.name)
def test_every_operation_supports_every_dtype(world, row):
    Batch(ProcessPlace(world), row).check_dtypes()


@pytest.mark.parametrize("codec", exact.EXACT)
@pytest.mark.parametrize("row", HERE, ids=lambda row: row.name)
def test_lossless_codecs_return_equal_bits_for_every_dtype(world, row, codec):
    exact.check_dtypes(ProcessPlace(world), row, codec)


@pytest.mark.parametrize("codec", exact.EXACT)
def test_lossless_codecs_return_equal_bits_for_long_arrays(world, codec):
    exact.check_long(ProcessPlace(world), codec)


def test_cotangents_use_the_cotangent_codec(world):
    lossy.check_cotangents(ProcessPlace(world))


def test_half_precision_sums_round_once(world):
    """Sums of float16 and bfloat16 are computed in float32."""
    large = {"float16": 2048, "bfloat16": 256}
    mine = {
        name: np.full(5, value if world.rank == 0 else 1, jax.numpy.dtype(name))
        for name, value in large.items()
    }
    expected = {
        name: np.full(5, value + world.size - 1, np.float64).astype(jax.numpy.dtype(name))
        for name, value in large.items()
    }
    data.assert_same(jcc.allreduce(mine), expected)


def test_operations_return_the_pytree_of_their_operand(world):
    """A pytree with several dtypes and empty arrays, in one operation."""
    n, rank = world.size, world.rank
    tree = {
        "a": [np.arange(6, dtype=np.float32).reshape(2, 3) + rank, np.int8(rank)],
        "b": (np.zeros((0, 4), np.float64), {"c": np.full((3, 1, 2), 1j * rank)}),
        "none": None,
    }
    result = jax.jit(jcc.allreduce)(tree)
    expected = {
        "a": [
            n * np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(n * (n - 1) // 2),
            np.array(n * (n - 1) // 2, np.int8),
        ],
        "b": (np.zeros((0, 4), np.float64), {"c": np.full((3, 1, 2), 1j * (n * (n - 1) // 2))}),
        "none": None,
    }
    data.assert_same(result, expected)


@pytest.mark.parametrize("name", [*float0.OPERATIONS, *float0.BETWEEN_PROCESSES])
def test_operations_pass_float0_leaves_through(world, name):
    float0.check(ProcessPlace(world), (float0.OPERATIONS | float0.BETWEEN_PROCESSES)[name])


def test_numpy_operands_may_change_after_the_call(world):
    """Eager operations copy NumPy arrays, also aligned ones, whose memory XLA could share."""
    for count in (4, 1 << 20):
        memory = np.zeros(4 * count + 64, np.uint8)
        start = -memory.ctypes.data % 64
        x = memory[start : start + 4 * count].view(np.float32)
        x[:] = 1
        result = jcc.allreduce({"x": x, "y": x[1:]}, comm=world)
        x[:] = 100
        for leaf in jax.tree.leaves(result):
            np.testing.assert_array_equal(leaf, world.size)


def test_operations_send_large_messages_in_chunks(world):
    """Several chunks, and odd sizes."""
    n, count = world.size, 3_000_017
    x = (np.arange(count, dtype=np.int32) * (world.rank + 1)).astype(np.int32)
    total = np.arange(count, dtype=np.int32) * np.int32(n * (n + 1) // 2)
    data.assert_same(jcc.allreduce(x), total)
    data.assert_same(jcc.bcast(x, root=n - 1), np.arange(count, dtype=np.int32) * np.int32(n))
    rows = np.stack([x[:200_003] + j for j in range(n)])
    start = np.arange(200_003, dtype=np.int32)
    data.assert_same(
        jcc.alltoall(rows),
        np.stack([(start * (i + 1) + world.rank).astype(np.int32) for i in range(n)]),
    )

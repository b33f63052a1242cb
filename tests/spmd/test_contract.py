"""The contract on forced host devices: 2, 3 and 8 ranks along an axis of shard_map and of pmap."""

import functools
import os

import jax
import numpy as np
import pytest
from contract import AxisPlace, Batch, contexts_at, data, exact, float0, places_of
from contract.operations import of_style
from jax.sharding import PartitionSpec as P

from jaxccomp._native import engine

ALL_PLACES = [(n, mode) for n in (2, 3, 8) for mode in ("check_vma", "no_check_vma")] + [
    (8, "pmap")
]
# Compilation takes a minute per place. JAXCCOMP_TEST_PLACES lists places ("3-check_vma,8-pmap"), or
# "all". Without it each size and each mode is tested once. With the newest JAX another place runs
# (tools/run_tests.py).
USUAL = "2-check_vma,3-no_check_vma,8-pmap"
CHOSEN = os.environ.get("JAXCCOMP_TEST_PLACES", USUAL).split(",")
PLACES = [(n, mode) for n, mode in ALL_PLACES if f"{n}-{mode}" in CHOSEN or CHOSEN == ["all"]]
assert PLACES, f"JAXCCOMP_TEST_PLACES chooses nothing from {ALL_PLACES}"
pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
OPERATIONS = of_style("axis")


@functools.lru_cache(maxsize=1)  # tests of one batch are consecutive
def batch(n, mode, operation):
    return Batch(AxisPlace(n, mode), operation)


def each(rows):
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


def runs_eagerly(n, mode):
    """Excludes pmap, which always compiles. With and without check_vma on one number of devices."""
    return mode == "check_vma" or (mode == "no_check_vma" and n == 3)


CASES = [
    pytest.param(n, mode, row, transform, id=f"{row.name}-{n}-{mode}-{transform.name}")
    for row in OPERATIONS
    for n, mode in PLACES
    for transform in contexts_at(row, n, (n, mode), PLACES)
    if transform.alone != "eager" or runs_eagerly(n, mode)
]


@pytest.mark.parametrize("n,mode,row,transform", CASES)
def test_every_operation_matches_numpy_under_transformations(n, mode, row, transform):
    batch(n, mode, row).check(transform)


def sized(rows, sizes):
    """Parametrises a test by rows and their numbers of devices."""
    pairs = [(n, row) for row in rows for n in places_of(row, sizes)]
    ids = [f"{n}-{row.name}" for n, row in pairs]
    return pytest.mark.parametrize("n,row", pairs, ids=ids)


@sized(OPERATIONS, [2, 3, 8])
def test_every_operation_supports_every_dtype(n, row):
    Batch(AxisPlace(n, "no_check_vma"), row).check_dtypes()


@each(OPERATIONS)
@pytest.mark.parametrize("codec", exact.EXACT)
def test_lossless_codecs_return_equal_bits_for_every_dtype(codec, row):
    exact.check_dtypes(AxisPlace(3, "check_vma"), row, codec)


@pytest.mark.parametrize("codec", exact.EXACT)
@pytest.mark.parametrize("n", [2, 8])
def test_lossless_codecs_return_equal_bits_for_long_arrays(n, codec):
    exact.check_long(AxisPlace(n, "no_check_vma"), codec)


@sized([row for row in OPERATIONS if row.same], [1, 3, 8])
def test_results_are_invariant_over_the_axis(n, row):
    """`out_specs=P()` is accepted, and each device has the same result."""
    place = AxisPlace(n, "check_vma")
    x = row.inputs(n, 5)
    mapped = jax.jit(place.mapped(lambda x, flag: row.call(place, x), out_specs=P()))
    result = mapped(place.spread(x), True)
    for shard in result.addressable_shards:
        data.assert_same(np.asarray(shard.data), row.expected(x)[0])


@each(OPERATIONS)
def test_operations_of_one_rank_return_their_operand(row):
    place = AxisPlace(1, "check_vma")
    x = row.inputs(1, 6)
    data.assert_same(place.run(lambda x, flag: row.call(place, x), x), row.expected(x))


@pytest.mark.parametrize("mode", ["check_vma", "no_check_vma"])
@pytest.mark.parametrize("name", [*float0.OPERATIONS, *float0.ALONG_AN_AXIS])
def test_operations_pass_float0_leaves_through(name, mode):
    float0.check(AxisPlace(2, mode), (float0.OPERATIONS | float0.ALONG_AN_AXIS)[name])


def test_float0_cases_cover_every_operation():
    import jaxccomp as jcc
    from jaxccomp import ops

    of_ops = {name for name in ops.__all__ if callable(getattr(ops, name)) and name != "Handle"}
    assert of_ops <= {*float0.OPERATIONS, *float0.BETWEEN_PROCESSES}
    assert set(jcc.lax.__all__) - {"ragged_all_to_all"} <= set(float0.ALONG_AN_AXIS)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_half_precision_sums_round_once(n):
    """Sums of float16 and bfloat16 are computed in float32."""
    import jaxccomp as jcc

    place = AxisPlace(n, "no_check_vma")
    x = {}
    for dtype, large in (("float16", 2048), ("bfloat16", 256)):
        # Adding single ones to the large value has no effect in the type itself; their sum has.
        column = np.ones((n, 5), np.float64)
        column[0] = large
        x[dtype] = column.astype(jax.numpy.dtype(dtype))
    how = place.how | {"backend": "native"} if engine.available() else place.how

    def program(x, flag):
        rows = {name: jax.numpy.stack([leaf] * n) for name, leaf in x.items()}
        return jcc.allreduce(x, **how), jcc.reduce_scatter(rows, **how)

    expected = {
        name: np.stack([leaf.astype(np.float64).sum(0)] * n).astype(leaf.dtype)
        for name, leaf in x.items()
    }
    data.assert_same(place.run(program, x), (expected, expected))

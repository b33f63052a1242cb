"""Sums of narrow types: every algorithm rounds once, and all ranks get equal bits.

Every algorithm sums float16, bfloat16 and float8 in float32. A result is within half a unit in the
last place of the exact sum, finite if the exact sum is representable, and equal at all positions of
an array with equal values.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import schedules
from jaxccomp._native import algorithms, engine

N = 5  # neither even nor a power of two
LENGTH = 320  # some values for each rank's part, with `N` parts
FLOATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
ROOT = 1

native = pytest.mark.skipif(not engine.available(), reason="needs the native engine")


def on_ranks(function, rows, ranks=N):
    """Runs ``function`` on row r of each operand on rank r; returns results as rows."""
    devices = np.array(jax.devices()[:ranks])
    mesh = jax.make_mesh((ranks,), ("d",), (AxisType.Auto,), devices=devices)

    def body(rows):
        results = function(jax.tree.map(lambda x: x[0], rows))
        return jax.tree.map(lambda x: x[None], results)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return jax.jit(mapped)(rows)


def columns(dtype):
    """Returns each rank's numbers by case: of ``dtype``, with sums that are exact in float32."""
    finfo = jnp.finfo(dtype)
    most, eps = float(finfo.max), float(finfo.eps)
    large = float(np.asarray(0.75 * most, dtype))
    whole = 1 / eps  # to which 1 adds half a unit in the last place
    random = np.random.default_rng(1).integers(-8, 9, (4, N)) / 4
    return {
        "all large": [large] * N,
        "all of the largest": [most] * N,
        "large that cancel": [large, large, -large, -large, large],
        "large, at first": [large, large, -large, 0, 0],
        "small beside large": [2 * whole, 1, 1, 1, 1],
        "small before large": [1, 1, 1, 1, 2 * whole],
        **{f"random {i}": row.tolist() for i, row in enumerate(random)},
    }


def operands(dtype):
    """Returns operands of shape (ranks, cases, LENGTH); a rank's values of a case are equal."""
    table = np.array(list(columns(dtype).values()), np.float64).T
    return np.repeat(table[:, :, None], LENGTH, axis=2).astype(dtype)


def check(got, exact, dtype, what):
    """Checks ``got`` of shape (cases, values) against one exact number for each case."""
    got = np.asarray(got)
    assert got.dtype == jnp.dtype(dtype), what
    finfo = jnp.finfo(dtype)
    for name, values, expected in zip(columns(dtype), got, exact, strict=True):
        where = f"{what}, {name}: {set(values.astype(float).tolist())} for {expected}"
        bits = {value.tobytes() for value in values}
        assert len(bits) == 1, f"{where}: values that are alike differ"
        if abs(expected) > float(finfo.max):
            continue
        spacing = max(
            2.0 ** np.floor(np.log2(max(abs(expected), float(finfo.tiny)))) * float(finfo.eps),
            float(finfo.smallest_subnormal),
        )
        off = abs(float(values[0]) - expected)
        assert off <= 0.5 * spacing * (1 + 2**-10), where


def alike(got, what):
    for rank in range(1, len(got)):
        assert np.asarray(got[rank]).tobytes() == np.asarray(got[0]).tobytes(), (
            f"{what}: rank {rank} differs from rank 0"
        )


def check_all(got, xs):
    for op, of in OPS.items():
        for dtype, x in xs.items():
            alike(got[op][dtype], f"{op} of {dtype}")
            check(got[op][dtype][0], of(exactly(x)), dtype, f"{op} of {dtype}")


def ways(collective):
    own = [("native", name) for name in ("auto", *algorithms.own_names(collective))]
    return [("xla", "auto"), *own]


@pytest.mark.parametrize("backend,algorithm", ways("allreduce"))
def test_allreduce_rounds_narrow_types_once(backend, algorithm):
    xs = {dtype: operands(dtype) for dtype in FLOATS}
    how = {"axis_name": "d", "backend": backend, "algorithm": algorithm}
    got = on_ranks(
        lambda xs: {op: {t: jcc.allreduce(x, op, **how) for t, x in xs.items()} for op in OPS}, xs
    )
    check_all(got, xs)


@pytest.mark.parametrize("backend,algorithm", ways("reduce"))
def test_reduce_rounds_narrow_types_once(backend, algorithm):
    xs = {dtype: operands(dtype) for dtype in FLOATS}
    how = {"axis_name": "d", "backend": backend, "algorithm": algorithm, "root": ROOT}
    got = on_ranks(
        lambda xs: {op: {t: jcc.reduce(x, op, **how) for t, x in xs.items()} for op in OPS}, xs
    )
    for op, of in OPS.items():
        for dtype, x in xs.items():
            check(got[op][dtype][ROOT], of(exactly(x)), dtype, f"{op} of {dtype}")


@pytest.mark.parametrize("backend,algorithm", ways("reduce_scatter"))
def test_reduce_scatter_rounds_narrow_types_once(backend, algorithm):
    xs = {dtype: operands(dtype) for dtype in FLOATS}
    how = {"axis_name": "d", "backend": backend, "algorithm": algorithm}

    def reduce(x, op):
        return jcc.reduce_scatter(jnp.stack([x] * N), op, **how)

    got = on_ranks(lambda xs: {op: {t: reduce(x, op) for t, x in xs.items()} for op in OPS}, xs)
    check_all(got, xs)


@pytest.mark.parametrize("backend,algorithm", ways("scan"))
def test_scans_round_narrow_types_once(backend, algorithm):
    xs = {dtype: operands(dtype) for dtype in FLOATS}
    how = {"axis_name": "d", "backend": backend, "algorithm": algorithm}

    def both(x):
        return jcc.scan(x, "sum", **how), jcc.exscan(x, "sum", **how)

    got = on_ranks(lambda xs: {t: both(x) for t, x in xs.items()}, xs)
    for dtype, x in xs.items():
        exact = exactly(x)
        for rank in range(N):
            before = exact[:rank]
            own = exact[rank : rank + 1]
            for result, part in zip(got[dtype], ([*own, *before], before), strict=True):
                total = np.sum(part, axis=0) + np.zeros(exact.shape[1])
                check(result[rank], total, dtype, f"rank {rank}, {dtype}")


def exactly(x):
    return np.asarray(x[:, :, 0], np.float64)


OPS = {"sum": lambda rows: rows.sum(axis=0), "mean": lambda rows: rows.mean(axis=0)}


@native
@pytest.mark.parametrize("algorithm", algorithms.own_names("allreduce"))
def test_partial_sums_beyond_the_range_of_fp16_are_right(algorithm):
    """Operands and results are in the range of fp16; some partial sums are not."""
    rows = np.array([[40000, 60000], [40000, 60000], [40000, -60000], [40000, 1], [40000, 1]])
    x = np.repeat(rows.astype(np.float32)[:, :, None], LENGTH, axis=2)
    how = {"axis_name": "d", "algorithm": algorithm, "codec": "fp16", "backend": "native"}
    total, mean = on_ranks(
        lambda x: (jcc.allreduce(x[1], **how), jcc.allreduce(x, "mean", **how)), x
    )
    alike(total, "sum")
    alike(mean, "mean")
    np.testing.assert_allclose(total[0], np.full(LENGTH, 60002), rtol=2**-10)
    np.testing.assert_allclose(mean[0][0], np.full(LENGTH, 40000), rtol=2**-10)


@native
@pytest.mark.parametrize("algorithm", ["ring", "two_shot"])
def test_codec_for_float32_leaves_float16_uncompressed(algorithm):
    """float16 is sent without loss beside encoded float32, as float16 or as float32."""
    half = np.random.default_rng(2).standard_normal((N, 400)).astype(np.float16)
    full = np.random.default_rng(3).standard_normal((N, 400)).astype(np.float32)
    how = {"axis_name": "d", "algorithm": algorithm, "codec": "bf16", "backend": "native"}
    got = on_ranks(lambda xs: jcc.allreduce(xs, **how), (half, full))
    alone = on_ranks(lambda x: jcc.allreduce(x, **{**how, "codec": None}), half)
    np.testing.assert_array_equal(got[0], alone)
    assert 0 < np.abs(got[1][0] - full.sum(0)).max() < 0.1


@native
def test_feedback_of_half_types_delivers_all_values():
    x = np.random.default_rng(4).standard_normal((N, 400)).astype(jnp.bfloat16)
    before = np.random.default_rng(5).standard_normal((N, 400)).astype(jnp.bfloat16)
    how = {"axis_name": "d", "algorithm": "ring", "codec": "int8", "backend": "native"}
    total, residual = on_ranks(
        lambda xs: jcc.allreduce_with_feedback(xs[0], xs[1], op="sum", **how), (x, before)
    )
    alike(total, "sum")
    exact = x.astype(np.float64).sum(0) + before.astype(np.float64).sum(0)
    made_up = np.asarray(total[0], np.float64) + np.asarray(residual, np.float64).sum(0)
    np.testing.assert_allclose(made_up, exact, atol=0.1)


RANDOM = "randomk:density=0.05"
# All ranks are on one host, where `hierarchical` encodes nothing.
CODED = [name for name in algorithms.own_names("allreduce") if name != "hierarchical"]


@native
@pytest.mark.parametrize("algorithm", ["xla", *CODED])
def test_ranks_select_the_same_randomk_positions(algorithm):
    """The sum holds all ranks' values at these positions: no algorithm drops any on the way."""
    x = np.stack([np.arange(1.0, 4001.0, dtype=np.float32)] * N)
    how = {"axis_name": "d", "codec": RANDOM, "backend": "native", "algorithm": algorithm}
    if algorithm == "xla":
        how |= {"backend": "xla", "algorithm": "auto"}
    got = np.asarray(on_ranks(lambda x: jcc.allreduce(x, **how), x))
    alike(got, "sum")
    kept = got[0] != 0
    assert 200 <= kept.sum() <= 210  # at least 5 % of each chunk
    np.testing.assert_array_equal(got[0][kept], N * x[0][kept])
    again = np.asarray(on_ranks(lambda x: jcc.allreduce(x + 1, **how), x))
    assert ((again[0] != 0) != kept).any()  # the next call selects other positions


@native
@pytest.mark.parametrize("algorithm", algorithms.own_names("reduce_scatter"))
def test_reduce_scatter_uses_the_same_randomk_positions_on_all_ranks(algorithm):
    """These positions hold the sum over ranks; the others hold this rank's own values."""
    x = np.stack([np.arange(1.0, 5001.0, dtype=np.float32).reshape(5, 1000)] * N)
    how = {"axis_name": "d", "codec": RANDOM, "backend": "native", "algorithm": algorithm}
    got = np.asarray(on_ranks(lambda x: jcc.reduce_scatter(x, **how), x))
    times, counts = np.unique(got / x[0], return_counts=True)
    assert times.tolist() == [1, N] and counts[1] == 250


@pytest.mark.parametrize("backend", ["xla", pytest.param("native", marks=native)])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
def test_float8_and_int4_results_equal_jax(backend, dtype):
    signed = not dtype.startswith("uint")
    values = np.random.default_rng(6).integers(-2 if signed else 0, 2, (N, 40)).astype(dtype)
    how = {"axis_name": "d", "backend": backend}

    def program(x):
        ours = jcc.lax.psum(x, "d", backend=backend), jcc.lax.pmax(x, "d", backend=backend)
        first = jcc.exscan(x, "max", **how), jcc.exscan(x, "min", **how)
        return ours, (jax.lax.psum(x, "d"), jax.lax.pmax(x, "d")), first

    ours, of_jax, first = on_ranks(program, values)
    for mine, theirs in zip(ours, of_jax, strict=True):
        assert mine.dtype == theirs.dtype == jnp.dtype(dtype)
        np.testing.assert_array_equal(np.asarray(mine, np.float32), np.asarray(theirs, np.float32))
    info = jnp.iinfo(dtype) if "int" in dtype else jnp.finfo(dtype)
    least, most = np.asarray(first[0][0], np.float32), np.asarray(first[1][0], np.float32)
    assert (least == (float(info.min) if dtype != "float8_e5m2" else -np.inf)).all()
    assert (most == (float(info.max) if dtype != "float8_e5m2" else np.inf)).all()


@pytest.mark.parametrize("backend", ["xla", pytest.param("native", marks=native)])
def test_pmean_is_finite_where_the_sum_is_not(backend):
    x = {"half": np.full((N, 8), 40000, np.float16), "full": np.ones((N, 8), np.float32)}
    got = on_ranks(lambda x: jcc.lax.pmean(x, "d", backend=backend), x)
    np.testing.assert_array_equal(got["half"], x["half"])
    np.testing.assert_array_equal(got["full"], x["full"])


@native
def test_predicted_cost_of_half_type_sums_is_that_of_float32():
    """Algorithms that send partial sums send half types as float32; others send the half type."""

    def bytes_of(algorithm, dtype, size):
        return schedules.simulate(
            "allreduce", algorithm, cluster="4x1gbit", size_bytes=size, dtype=dtype
        ).link_bytes

    for algorithm in algorithms.own_names("allreduce"):
        as_float32 = algorithms.sends_partial("allreduce", algorithm)
        expected = bytes_of(algorithm, "float32", (2 if as_float32 else 1) << 20)
        assert bytes_of(algorithm, "bfloat16", 1 << 20) == expected, algorithm

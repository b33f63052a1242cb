"""The composition of operations for GPUs, run on CPU devices with the engine instead of the stage.

Results equal the native plane's: bit for bit with `lossless`, otherwise within the codec's bounds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.stage import runs
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import codecs, comm
from jaxccomp._native import engine, platforms
from jaxccomp._primitives import lowering

pytestmark = pytest.mark.skipif(not engine.available(), reason="the engine moves the operations")

N = 4
COUNT = 1003  # not a multiple of N
DTYPES = ("float32", "bfloat16")


@pytest.fixture
def as_on_gpus(monkeypatch):
    """Lowers calls for the CPU as for GPUs; returns the calls that reach the engine."""
    seen = []
    attributes = lowering._attributes

    def noted(call, devices):
        seen.append((call.collective, call.codec))
        return attributes(call, devices)

    def turn_on():
        monkeypatch.setattr(lowering, "CUDA", lowering.CPU)
        monkeypatch.setattr(comm, "why_no_cuda", lambda: "")
        monkeypatch.setattr(platforms, "cuda_runs", runs)
        monkeypatch.setattr(lowering, "_attributes", noted)
        return seen

    return turn_on


def run(function, x):
    """Returns the result of a function on each device's row."""
    mesh = jax.make_mesh((N,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:N])
    mapped = jax.shard_map(
        lambda row: jax.tree.map(lambda y: y[None], function(row[0])),
        mesh=mesh,
        in_specs=P("d"),
        out_specs=P("d"),
        check_vma=False,
    )
    return jax.tree.map(np.asarray, jax.jit(mapped)(x))


def values(dtype, shape=(COUNT,), seed=0):
    x = np.random.default_rng(seed).standard_normal((N, *shape)).astype(np.float32)
    return jnp.asarray(x, dtype)


REDUCTIONS = {
    "allreduce": (jcc.allreduce, (COUNT,)),
    "reduce": (lambda x, **how: jcc.reduce(x, root=2, **how), (COUNT,)),
    "reduce_scatter": (jcc.reduce_scatter, (N, 251)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_lossless_reductions_equal_the_engines_bits(name, op, dtype, as_on_gpus):
    operation, shape = REDUCTIONS[name]
    x = values(dtype, shape)
    if op != "max":  # orders of summation may differ: these sums are exact
        x = jnp.round(x * 8)

    def function(x):
        return operation(x, op=op, codec="lossless", axis_name="d")

    expected = run(function, x)
    seen = as_on_gpus()
    got = run(lambda x: function(x), x)
    assert seen[0] == ("alltoall", "lossless")
    assert seen[1:] == ([] if name == "reduce_scatter" else [("allgather", "lossless")])
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize(
    "codec,dtype",
    [
        ("int8:block=64|lossless", "float32"),
        ("int8:block=64|lossless", "bfloat16"),
        pytest.param("int8:block=64", "float32", marks=pytest.mark.slow),
        pytest.param("bf16|lossless", "float32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_lossy_reductions_are_within_the_error_bound(name, op, dtype, codec, as_on_gpus):
    operation, shape = REDUCTIONS[name]
    x = values(dtype, shape)
    exact = np.asarray(x, np.float64)
    reduced = {"sum": np.sum, "mean": np.mean, "max": np.max}[op](exact, axis=0)
    bound = codecs.error_bound(codec, dtype)
    each = bound.relative + bound.block
    # Each of N operands is encoded once, and their reduction once more; results are rounded.
    parts = {"sum": N, "mean": 1, "max": 1}[op] * np.abs(exact).max()
    rounded = 2.0**-8 if dtype == "bfloat16" else 2.0**-22
    most = each * parts + (each + rounded) * (np.abs(reduced).max() + each * parts)

    def function(x):
        return operation(x, op=op, codec=codec, axis_name="d")

    native = run(function, x)
    seen = as_on_gpus()
    got = run(lambda x: function(x), x)
    following = "lossless" if codec.endswith("lossless") else "raw"
    assert {codec for _, codec in seen} == {following}
    if name == "reduce":
        assert not got[[0, 1, 3]].any()
        got, native = got[2], native[2]
    for found in (got, native):
        assert np.abs(np.asarray(found, np.float64) - reduced).max() <= most


MOVES = {
    "bcast": (lambda x, **how: jcc.bcast(x, root=1, **how), (COUNT,)),
    "allgather": (jcc.allgather, (COUNT,)),
    "gather": (lambda x, **how: jcc.gather(x, root=1, **how), (COUNT,)),
    "scatter": (lambda x, **how: jcc.scatter(x, root=1, **how), (N, 251)),
    "alltoall": (jcc.alltoall, (N, 251)),
    "permute": (lambda x, **how: jcc.sendrecv(x, dest=[1, 2, 3, 0], **how), (COUNT,)),
}


@pytest.mark.parametrize("codec", ["int8|lossless", "topk:density=0.1"])
@pytest.mark.parametrize("name", MOVES)
def test_moved_values_equal_the_native_backends_decoded_values(name, codec, as_on_gpus):
    """Values are encoded once."""
    operation, shape = MOVES[name]
    x = values("float32", shape)

    def function(x):
        return operation(x, codec=codec, axis_name="d")

    expected = run(function, x)
    seen = as_on_gpus()
    got = run(lambda x: function(x), x)
    assert seen and not {"alltoallv", "allreduce"}.intersection(dict(seen))
    if codec.startswith("topk"):  # chunks have other numbers of values
        assert np.count_nonzero(got) > 0
        kept = got != 0
        np.testing.assert_array_equal(got[kept], run(raw(operation), x)[kept])
    else:
        np.testing.assert_allclose(got, expected, atol=2 * np.abs(x).max() / 252)


def raw(operation):
    return lambda x: operation(x, axis_name="d")


def test_pytrees_of_mixed_dtypes_are_reduced_exactly(as_on_gpus):
    x = jnp.round(values("float32") * 8)

    def function(x):
        tree = {"a": x, "b": x.astype(jnp.int32), "c": x.astype(jnp.bfloat16), "d": x[:0]}
        return jcc.allreduce(tree, codec="lossless", axis_name="d")

    expected = run(function, x)
    as_on_gpus()
    got = run(lambda x: function(x), x)
    for name, wanted in expected.items():
        assert got[name].dtype == wanted.dtype
        np.testing.assert_array_equal(got[name].view(np.uint8), wanted.view(np.uint8), name)


@pytest.mark.parametrize("codec", [None, "lossless", "int8"])
def test_feedback_residuals_equal_the_missing_part_of_the_sum(codec, as_on_gpus):
    x = jnp.round(values("float32") * 8)

    def function(x):
        zeros = jnp.zeros_like(x)
        return jcc.allreduce_with_feedback(x, zeros, op="sum", codec=codec, axis_name="d")

    as_on_gpus()
    total, lost = run(function, x)
    exact = np.asarray(x).sum(axis=0)
    np.testing.assert_allclose(total[0] + lost.sum(axis=0), exact, atol=1e-3)
    assert bool(np.abs(lost).max()) == (codec == "int8")


def test_composed_operations_support_grad_and_vmap(as_on_gpus):
    x = values("float32", (3, COUNT))

    def function(x):
        def loss(y):
            return (jcc.allreduce(y, codec="lossless", axis_name="d") ** 2).sum()

        return jax.vmap(jax.grad(loss))(x)

    expected = run(function, x)
    seen = as_on_gpus()
    got = run(lambda x: function(x), x)
    assert set(seen) == {("alltoall", "lossless"), ("allgather", "lossless")}
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

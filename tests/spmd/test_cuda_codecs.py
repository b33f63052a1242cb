"""Collectives that call codecs as on GPUs, with the engine's codecs on the host instead.

The calls are the ones that GPUs get, and their results are the reference for the kernels
(tests/cpp/test_cuda_stream_codecs.cc). They equal the codecs in jax.numpy bit for bit.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import codecs
from jaxccomp._native import engine, platforms
from jaxccomp._traced import cuda_codecs

pytestmark = [
    pytest.mark.skipif(not engine.available(), reason="codes by the engine"),
    pytest.mark.slow,
]

N = 4
# Sums of float32 in "onebit" differ from the engine's.
CODECS = ["bf16", "fp8_e5m2", "int8", "int4:rounding=stochastic", "ternary", "tbq:threshold=0.5"]


def coded(target, codec, dtype, result, operands):
    """Returns the output of a handler, in NumPy: rows of the leading dimensions."""
    dtype = jnp.dtype(dtype)
    if target == "jaxccomp_encode":
        rows = np.asarray(operands[0]).reshape(-1, operands[0].shape[-1])
        steps = np.zeros(len(rows), np.uint64)
        if len(operands) > 1:
            steps = np.ascontiguousarray(operands[1]).view(np.uint64).reshape(-1)
        frames = [
            codecs.encode(codec, row, key=(int(step), 0, 0), checksum=False, chunk_bytes=1 << 28)
            for row, step in zip(rows, steps, strict=True)
        ]
        codes = [np.frombuffer(each, np.uint8)[-result.shape[-1] :] for each in frames]
        return np.stack(codes).reshape(result.shape)
    count = result.shape[-1]
    rows = np.asarray(operands[0]).reshape(-1, operands[0].shape[-1])
    like = codecs.encode(codec, np.zeros(count, dtype), checksum=False, chunk_bytes=1 << 28)
    header = like[: len(like) - rows.shape[1]]
    decoded = [codecs.decode(header + row.tobytes(), require_checksum=False) for row in rows]
    values = np.stack(decoded).astype(result.dtype)
    if target == "jaxccomp_decode":
        return values.reshape(result.shape)
    groups = values.reshape(-1, operands[0].shape[-2], count)
    total = groups[:, 0]
    for row in range(1, groups.shape[1]):
        total = total + groups[:, row]
    return total.reshape(result.shape)


@pytest.fixture
def calls(monkeypatch):
    """Replaces the calls by callbacks; returns the targets called."""
    seen = []

    def ffi_call(target, result, *, vmap_method):
        def call(*operands, codec, dtype):
            seen.append(target)

            def compute(*values):
                lead = values[0].shape[: values[0].ndim - (2 if target.endswith("sum") else 1)]
                shape = jax.ShapeDtypeStruct((*lead, *result.shape), result.dtype)
                return coded(target, codec, dtype, shape, values)

            return jax.pure_callback(compute, result, *operands, vmap_method=vmap_method)

        return call

    monkeypatch.setattr(jax.ffi, "ffi_call", ffi_call)
    monkeypatch.setattr(cuda_codecs, "usable", lambda ctx: True)
    monkeypatch.setattr(cuda_codecs, "_register", lambda: None)
    monkeypatch.setattr(platforms, "cuda_runs_on_streams", lambda codec, dtype: dtype != "float64")
    return seen


def run(function, x, **how):
    mesh = jax.make_mesh((N,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:N])
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d"), **how)
    return np.asarray(jax.jit(mapped)(x))


COLLECTIVES = {
    "allreduce": lambda x, **how: jcc.allreduce(x[0], op="mean", **how)[None],
    "maximum": lambda x, **how: jcc.allreduce(x[0], op="max", **how)[None],
    "reduce_scatter": lambda x, **how: jcc.reduce_scatter(x[0], **how)[None],
    "allgather": lambda x, **how: jcc.allgather(x[0], **how)[None],
    "alltoall": lambda x, **how: jcc.alltoall(x[0], **how)[None],
    "bcast": lambda x, **how: jcc.bcast(x[0], root=1, **how)[None],
    "feedback": lambda x, **how: jnp.stack(jcc.allreduce_with_feedback(x[0], x[0], "mean", **how))[
        None
    ],
}


def both(name, codec, x, monkeypatch, wrap=lambda f: f, **how):
    """Returns the results of the calls, and of jax.numpy."""

    def function(x):
        return wrap(COLLECTIVES[name])(x, codec=codec, axis_name="d", backend="xla")

    by_calls = run(function, x, **how)
    monkeypatch.setattr(cuda_codecs, "usable", lambda ctx: False)
    return by_calls, run(lambda x: function(x), x, **how)


def values(dtype="float32"):
    x = np.random.default_rng(0).standard_normal((N, N, 3, 111)).astype(np.float32)
    return jnp.asarray(x, dtype)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_gpu_codec_calls_return_the_xla_backends_bits(name, codec, calls, monkeypatch):
    got, expected = both(name, codec, values(), monkeypatch, check_vma=False)
    assert calls
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["allgather", "alltoall", "bcast"])
def test_gpu_codec_calls_return_equal_bits_for_half_precision(name, dtype, calls, monkeypatch):
    got, expected = both(name, "int8", values(dtype), monkeypatch, check_vma=True)
    assert calls and got.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("check_vma", [False, True])
def test_gpu_codec_calls_support_vmap_and_grad(check_vma, calls, monkeypatch):
    def batched(collective):
        def function(x, **how):
            def loss(y):
                return (collective(y[None], **how) ** 2).sum()

            return jax.vmap(jax.grad(loss))(x[0])[None]

        return function

    got, expected = both(
        "reduce_scatter",
        "int4",
        jnp.asarray(np.random.default_rng(1).standard_normal((N, 3, N, 50)), jnp.float32),
        monkeypatch,
        batched,
        check_vma=check_vma,
    )
    assert calls
    np.testing.assert_array_equal(got, expected)

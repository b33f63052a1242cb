"""Lossy codecs on both planes: bounds, sent arrays, and codecs of cotangents."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import AxisPlace, lossy
from contract.operations import of_style
from golden_errors import raises
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp._native import engine

N = 8
BACKENDS = ["xla"] + (["native"] if engine.available() else [])
CODECS = [
    "bf16:rounding=stochastic",
    "fp16",
    "fp8_e5m2",
    "int8|lossless",
    "int4:rounding=stochastic",
    "onebit",
    "ternary",
    "topk:density=0.4",
    "randomk:density=0.4",
]


def place(n, mode, backend):
    chosen = AxisPlace(n, mode)
    chosen.how = chosen.how | {"backend": backend}
    return chosen


@pytest.mark.parametrize("backend", [pytest.param("xla", marks=pytest.mark.slow), *BACKENDS[1:]])
@pytest.mark.parametrize("codec", CODECS)
def test_results_of_every_operation_are_within_the_error_bound(codec, backend):
    lossy.check_bounds(place(3, "check_vma", backend), of_style("axis"), codec)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cotangents_use_the_cotangent_codec(backend):
    lossy.check_cotangents(place(3, "no_check_vma", backend))


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((N,), ("d",), axis_types=(AxisType.Auto,))


def mapped(mesh, call, codec):
    def body(x):
        return call(x[0], axis_name="d", backend="xla", codec=codec)[None]

    return jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    )


def moved(function, x):
    """Returns (operation, shape, dtype) of each sent array."""
    kinds = "all_gather|all_to_all|all_reduce|reduce_scatter|collective_permute"
    found = []
    for line in function.lower(x).as_text().splitlines():
        if match := re.search(rf'"?stablehlo\.({kinds})"?.*: \(tensor<([^>]*)>\)', line):
            *shape, dtype = match[2].split("x")
            shape = shape[1:] if match[1] == "all_gather" else shape  # drops a dimension of 1
            found.append((match[1], tuple(map(int, shape)), dtype))
    return sorted(found)


def ring(x, **how):
    return jcc.sendrecv(x, [(rank + 1) % N for rank in range(N)], **how)


M = 1000  # values in a row
TRAVELS = {
    ("alltoall", "int4"): [("all_to_all", (N, 500), "ui8"), ("all_to_all", (N, 32), "ui16")],
    ("alltoall", "bf16|lossless"): [("all_to_all", (N, M), "ui16")],
    ("alltoall", "lossless"): [("all_to_all", (N, M), "f32")],
    ("allgather", "onebit"): [("all_gather", (N * 125,), "ui8"), ("all_gather", (8, 2), "f32")],
    ("sendrecv", "fp8_e4m3"): [
        ("collective_permute", (N * M,), "ui8"),
        ("collective_permute", (250,), "ui8"),
    ],
    ("bcast", "tbq"): [("collective_permute", (N * 250,), "ui8")] * 3,
    ("reduce_scatter", "topk"): [("all_to_all", (N, 10), "f32"), ("all_to_all", (N, 10), "ui16")],
    ("allreduce", "int8"): [
        ("all_gather", (M,), "ui8"),
        ("all_gather", (32,), "ui16"),
        ("all_to_all", (N, M), "ui8"),
        ("all_to_all", (N, 32), "ui16"),
    ],
    ("allreduce", "randomk:density=0.1"): [
        ("all_gather", (100,), "f32"),
        ("all_gather", (2,), "ui32"),
        ("all_to_all", (N, 100), "f32"),
        ("all_to_all", (N, 2), "ui32"),
    ],
}


@pytest.mark.parametrize("name,codec", TRAVELS)
def test_only_encoded_arrays_are_sent(mesh, name, codec):
    function = mapped(mesh, ring if name == "sendrecv" else getattr(jcc, name), codec)
    x = jax.ShapeDtypeStruct((N, N, M), np.float32)
    assert moved(function, x) == sorted(TRAVELS[name, codec])


def test_random_numbers_differ_by_rank_and_repeat_for_equal_calls(mesh):
    function = mapped(mesh, jcc.allgather, "int2:rounding=stochastic")
    x = np.broadcast_to(np.linspace(-1, 1, 300, dtype=np.float32), (N, 300))
    rows = np.asarray(function(x))
    assert (rows == rows[:1]).all()
    assert len({row.tobytes() for row in rows[0]}) == N
    np.testing.assert_array_equal(function(x), rows)
    other = np.asarray(function(x.copy() * np.float32(2))) / 2
    assert (other != rows).any()  # other values get other random numbers
    assert np.abs(rows[0].mean(axis=0) - x[0]).mean() < 0.25


def test_unsupported_dtypes_are_sent_uncompressed(mesh):
    x = np.random.default_rng(0).integers(-(2**30), 2**30, (N, N, 5)).astype(np.int32)
    np.testing.assert_array_equal(
        mapped(mesh, jcc.alltoall, "int4")(x), np.asarray(x).swapaxes(0, 1)
    )
    total = mapped(mesh, jcc.allreduce, "topk")(x)
    np.testing.assert_array_equal(total, np.broadcast_to(x.sum(0, np.int32), x.shape))


def test_half_types_are_summed_in_float32(mesh):
    x = np.full((N, N, 64), 1, jnp.bfloat16)
    x[0] = 256
    result = mapped(mesh, jcc.reduce_scatter, "fp8_e4m3")(x)
    np.testing.assert_array_equal(
        result, np.full((N, 64), 256 + 7, np.float32).astype(jnp.bfloat16)
    )


@pytest.mark.parametrize("codec", ["fp16", "int8:rounding=stochastic", "randomk:density=0.5"])
def test_half_and_double_precision_are_within_the_error_bound(mesh, codec):
    values = np.random.default_rng(2).standard_normal((N, N, 70))
    part = jcc.codecs.error_bound(codec, "float64")
    with jax.enable_x64(True):
        for dtype in ("float16", "bfloat16", "float64"):
            x = values.astype(jnp.dtype(dtype))
            result = np.asarray(mapped(mesh, jcc.alltoall, codec)(x))
            assert result.dtype == x.dtype
            most = (part.relative + part.block + 2**-7) * np.abs(values).max()
            assert np.abs(result.astype(float) - x.swapaxes(0, 1).astype(float)).max() <= most


@pytest.mark.parametrize("codec", ["dgc", "zfp:rate=4"])
def test_codecs_without_a_fixed_rate_are_refused_by_the_xla_backend(mesh, codec):
    x = np.zeros((N, 4), np.float32)
    with raises(jcc.errors.UnknownNameError, 'backend="xla"', "'bf16'", "'topk'", "fixed rate"):
        mapped(mesh, jcc.allgather, codec)(x)

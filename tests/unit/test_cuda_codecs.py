"""The lowering of the traced plane for GPUs: calls of the CUDA library's codecs, if available."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import patience
import pytest
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import comm
from jaxccomp._native import engine, platforms
from jaxccomp._runtime import world
from jaxccomp._traced import cuda_codecs

pytestmark = pytest.mark.skipif(not engine.available(), reason="its handlers are the engine's")

HAS = ("bf16", "fp16", "int8", "int4", "fp8_e4m3", "ternary", "tbq")


@pytest.fixture
def library(monkeypatch):
    """The CUDA library, with kernels of some codecs."""

    def runs(codec, dtype):
        return codec.partition(":")[0] in HAS and dtype in ("float32", "bfloat16")

    monkeypatch.setattr(platforms, "why_no_cuda", lambda: "")
    monkeypatch.setattr(platforms, "cuda_runs_on_streams", runs)


def on_axis(function, **how):
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))
    return jax.shard_map(function, mesh=mesh, in_specs=P("i"), out_specs=P("i"), **how)


def text_of(function, platforms=("cuda",), shape=(4, 250), dtype=jnp.float32):
    operand = jax.ShapeDtypeStruct(shape, dtype)
    return jax.jit(function).trace(operand).lower(lowering_platforms=platforms).as_text()


def calls_in(text):
    """Returns (target, codec, dtype, types) of each call of a codec."""
    pattern = (
        r"@jaxccomp_(\w+)\(.*codec = \"([^\"]*)\", dtype = \"(\w+)\".* : "
        r"\(([^)]*)\) -> (tensor<[^>]*>)"
    )
    return [
        (m[1], m[2], m[3], re.findall(r"<([^>]*)>", m[4]) + re.findall(r"<([^>]*)>", m[5]))
        for m in re.finditer(pattern, text)
    ]


def allreduce(codec, **how):
    def body(x):
        return jcc.allreduce(x, codec=codec, axis_name="i", backend="xla", **how)

    return body


def test_allreduce_lowers_to_encode_decode_sum_encode_decode_calls(library):
    found = calls_in(text_of(on_axis(allreduce("int8:block=64"), check_vma=False)))
    bytes_ = 1000 + 2 * 16
    assert found == [
        ("encode", "int8:block=64", "float32", ["1x1000xf32", f"1x{bytes_}xui8"]),
        ("decode_sum", "int8:block=64", "float32", [f"1x{bytes_}xui8", "1000xf32"]),
        ("encode", "int8:block=64", "float32", ["1000xf32", f"{bytes_}xui8"]),
        ("decode", "int8:block=64", "float32", [f"1x{bytes_}xui8", "1x1000xf32"]),
    ]


def test_codec_calls_are_pure_and_have_row_major_layouts(library):
    text = text_of(on_axis(allreduce("int8"), check_vma=False))
    lines = [line for line in text.splitlines() if "@jaxccomp_encode" in line]
    assert lines
    for line in lines:
        assert "has_side_effect = true" not in line
        assert "operand_layouts = [dense<[1, 0]> : tensor<2xindex>]" in lines[0]


def test_stochastic_codecs_take_the_prng_key_as_operand(library):
    found = calls_in(text_of(on_axis(allreduce("ternary"), check_vma=False)))
    assert found[0][3] == ["1x1000xf32", "1x2xui32", "1x254xui8"]
    assert [len(types) for _, _, _, types in found] == [3, 2, 3, 2]
    nearest = calls_in(text_of(on_axis(allreduce("ternary:rounding=nearest"), check_vma=False)))
    assert [len(types) for _, _, _, types in nearest] == [2, 2, 2, 2]


def test_half_precision_sums_are_float32(library):
    function = on_axis(allreduce("int4"), check_vma=False)
    found = calls_in(text_of(function, dtype=jnp.bfloat16))
    (total,) = [types for target, _, _, types in found if target == "decode_sum"]
    assert total[1] == "1000xf32"
    assert {dtype for _, _, dtype, _ in found} == {"bfloat16"}


def test_lossless_stage_is_omitted_on_gpus(library):
    function = on_axis(allreduce("bf16|lossless"), check_vma=False)
    assert {codec for _, codec, _, _ in calls_in(text_of(function))} == {"bf16"}


@pytest.mark.parametrize("check_vma", [False, True])
def test_codec_calls_work_in_scan_grad_and_vmap(library, check_vma):
    def body(x):
        def step(total, row):
            value, grad = jax.value_and_grad(lambda y: allreduce("int8")(y).sum())(row)
            return total + value, grad

        total, grads = jax.lax.scan(step, x.sum() * 0, x)
        return total + grads

    text = text_of(on_axis(body, check_vma=check_vma))
    assert {target for target, *_ in calls_in(text)} == {"encode", "decode_sum", "decode"}

    batched = on_axis(jax.vmap(allreduce("int8", op="mean")), check_vma=check_vma)
    assert calls_in(text_of(batched))


@pytest.mark.parametrize(
    "codec,dtype",
    [("onebit", jnp.float32), ("topk", jnp.float32), ("lossless", jnp.float32)],
)
def test_codecs_without_kernels_are_composed_of_xla_operations(library, codec, dtype):
    assert "@jaxccomp" not in text_of(on_axis(allreduce(codec), check_vma=False), dtype=dtype)


def test_float64_values_are_composed_of_xla_operations(library):
    with jax.enable_x64(True):
        text = text_of(on_axis(allreduce("int8"), check_vma=False), dtype=jnp.float64)
    assert "@jaxccomp" not in text


def test_other_platforms_are_composed_of_xla_operations(library):
    function = on_axis(allreduce("int8"), check_vma=False)
    for names in (("cpu",), ("tpu",), ("cpu", "cuda")):
        calls = set(re.findall(r"@(jaxccomp\w*)", text_of(function, names)))
        assert calls <= {"jaxccomp_count"}, names  # counts the call for jaxccomp.stats


def test_missing_cuda_library_composes_codecs_of_xla_operations(monkeypatch):
    monkeypatch.setattr(platforms, "why_no_cuda", lambda: "there is none; install it")
    assert "@jaxccomp" not in text_of(on_axis(allreduce("int8"), check_vma=False))


def test_kernels_are_used_only_if_all_processes_have_the_library(library, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(comm, "_state", None)
    assert not comm.all_have_cuda()
    state = world.World(0, 2)
    monkeypatch.setattr(comm, "_state", state)
    assert comm.all_have_cuda()
    state.no_cuda = "rank 1 has none"
    assert not comm.all_have_cuda()
    state.no_cuda, state.unreachable = "", "there is no MPI"
    assert not comm.all_have_cuda()


def test_export_names_the_calls(library):
    function = jax.jit(on_axis(allreduce("int8"), check_vma=False))
    checks = [
        jax.export.DisabledSafetyCheck.custom_call(f"jaxccomp_{name}")
        for name in ("encode", "decode", "decode_sum")
    ]
    exported = jax.export.export(function, platforms=["cuda"], disabled_checks=checks)(
        jax.ShapeDtypeStruct((4, 250), jnp.float32)
    )
    assert calls_in(exported.mlir_module())


def test_empty_values_need_no_call(library):
    codec = cuda_codecs.find("int8", "float32")
    x = jnp.zeros((0, 3))
    assert codec.encode(x) == ()
    assert codec.decode((), (0, 3), x.dtype).shape == (0, 3)


WITH_LIBRARY = """
import sys
from jaxccomp._native import engine, platforms
engine.load().add_library_path("jaxccomp_cuda", sys.argv[1])
cases = [("int8", "float32"), ("ternary", "bfloat16"), ("onebit", "float32"), ("int8", "float64")]
print([platforms.cuda_runs_on_streams(*case) for case in cases])
"""


@pytest.mark.skipif("JAXCCOMP_FAKE_CUDA" not in os.environ, reason="the C++ tests are not built")
def test_cuda_library_reports_its_codecs():
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITH_LIBRARY, os.environ["JAXCCOMP_FAKE_CUDA"]],
        capture_output=True,
        text=True,
        timeout=patience.seconds(100),
    )
    assert "[True, True, False, False]" in done.stdout, done.stderr

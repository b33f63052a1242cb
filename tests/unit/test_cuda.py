"""The lowering of jitted operations for GPUs, and errors where GPUs cannot be used."""

import os
import pathlib
import re
import subprocess
import sys
import tomllib

import jax
import jax.numpy as jnp
import patience
import pytest
from contract.stage import runs
from golden_errors import check_text, raises
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import errors
from jaxccomp._native import platforms
from jaxccomp._runtime import peer_info


@pytest.fixture
def on_gpus(monkeypatch):
    """The CUDA library without kernels of the traced plane, and the CPU's devices as GPUs."""
    jcc.init()
    monkeypatch.setattr(platforms, "why_no_cuda", lambda: "")
    monkeypatch.setattr(platforms, "cuda_runs", runs)
    monkeypatch.setattr(platforms, "cuda_runs_on_streams", lambda codec, dtype: False)
    gpus = jax.devices("cpu")
    monkeypatch.setattr(platforms.Platform, "devices", lambda self: gpus)


def lowered(function, *operands, donate=()):
    operands = [jax.ShapeDtypeStruct((4, 5), jnp.float32) for _ in operands or "x"]
    traced = jax.jit(function, donate_argnums=donate).trace(*operands)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def on_axis(function):
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))
    return jax.shard_map(function, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)


def calls_in(text):
    """Returns collective and codec of each call of the engine."""
    lines = [line for line in text.splitlines() if "@jaxccomp_collective" in line]
    names = ("collective", "codec")
    return [tuple(re.search(f' {name} = "([^"]*)"', line)[1] for name in names) for line in lines]


def call_in(text):
    lines = [line for line in text.splitlines() if "@jaxccomp_collective" in line]
    assert len(lines) == 1, text
    return lines[0]


def test_communicator_operation_lowers_to_one_custom_call(on_gpus):
    line = call_in(lowered(lambda x: jcc.bcast(x, root=0, codec="lossless")))
    for part in (
        'collective = "bcast"',
        'codec = "lossless"',
        'communicator = "world"',
        "groups = array<i64>,",
        "root = 0 : i64",
        "has_side_effect = true",
        "operand_layouts = [dense<[1, 0]> : tensor<2xindex>]",
        "result_layouts = [dense<[1, 0]> : tensor<2xindex>]",
    ):
        assert part in line


def test_axis_operation_lowers_with_the_engines_gpu_numbers(on_gpus):
    line = call_in(lowered(on_axis(lambda x: jcc.allreduce(x, axis_name="i"))))
    device = jax.devices()[0].id
    assert f"groups = array<i64: {platforms.CUDA.first_number + device}>" in line


def test_donated_operands_are_aliased_to_results(on_gpus):
    text = lowered(lambda x: jcc.allreduce(x), donate=(0,))
    assert "output_operand_alias<output_tuple_indices = [], operand_index = 0" in call_in(text)
    assert "output_operand_alias" not in call_in(lowered(lambda x: jcc.allreduce(x)))


def test_ordered_communicator_lowers_with_a_token(on_gpus):
    ordered = jcc.world().ordered()
    line = call_in(lowered(lambda x: jcc.allreduce(x, comm=ordered)))
    assert "!stablehlo.token" in line and "ordered = 1" in line


def test_export_for_cuda_contains_the_custom_call(on_gpus):
    operand = jax.ShapeDtypeStruct((3,), jnp.float32)
    checks = [jax.export.DisabledSafetyCheck.custom_call("jaxccomp_collective")]
    exported = jax.export.export(
        jax.jit(lambda x: jcc.allreduce(x)), platforms=["cuda"], disabled_checks=checks
    )(operand)
    assert exported.platforms == ("cuda",)
    assert "@jaxccomp_collective" in exported.mlir_module()


def by_rank(x):
    return x.reshape(1, -1)


LOSSLESS = ("alltoall", "lossless"), ("allgather", "lossless")
LOWERED = {
    "raw sum": (lambda x, **how: jcc.allreduce(x, **how), [("allreduce", "raw")]),
    "lossless bcast": (
        lambda x, **how: jcc.bcast(x, root=0, codec="lossless", **how),
        [("bcast", "lossless")],
    ),
    "lossless allgatherv": (
        lambda x, **how: jcc.allgatherv(x, [4], codec="lossless", **how),
        LOSSLESS[1:],
    ),
    "lossless alltoall": (
        lambda x, **how: jcc.alltoall(by_rank(x), codec="lossless", **how),
        [("alltoall", "lossless")],
    ),
    "lossless sum": (lambda x, **how: jcc.allreduce(x, codec="lossless", **how), LOSSLESS),
    "lossless reduce": (
        lambda x, **how: jcc.reduce(x, root=0, op="max", codec="lossless", **how),
        LOSSLESS,
    ),
    "lossless reduce_scatter": (
        lambda x, **how: jcc.reduce_scatter(by_rank(x), codec="lossless", **how),
        LOSSLESS[:1],
    ),
    "lossless scan": (lambda x, **how: jcc.scan(x, codec="lossless", **how), LOSSLESS[1:]),
    "int8 bcast": (
        lambda x, **how: jcc.bcast(x, root=0, codec="int8", **how),
        [("bcast", "raw")],
    ),
    "int8 mean": (
        lambda x, **how: jcc.allreduce(x, op="mean", codec="int8", **how),
        [("alltoall", "raw"), ("allgather", "raw")],
    ),
    "two stages": (lambda x, **how: jcc.allreduce(x, codec="int8|lossless", **how), LOSSLESS),
    "sparse": (
        lambda x, **how: jcc.allgather(x, codec="topk|lossless", **how),
        LOSSLESS[1:],
    ),
    "integers with int8": (
        lambda x, **how: jcc.allreduce(x.astype(jnp.int32), codec="int8", **how),
        [("allreduce", "raw")],
    ),
    "a difference with int8": (
        lambda x, **how: jcc.bcast(x, root=0, ref=x, codec="int8", **how),
        [("bcast", "raw")],
    ),
    "feedback of raw": (
        lambda x, **how: jcc.allreduce_with_feedback(x, x, "mean", **how)[0],
        [("allreduce", "raw")],
    ),
    "feedback of int8": (
        lambda x, **how: jcc.allreduce_with_feedback(x, x, "mean", codec="int8", **how)[0],
        [("alltoall", "raw"), ("allgather", "raw")],
    ),
}


@pytest.mark.parametrize("style", ["comm", "axis"])
@pytest.mark.parametrize("name", LOWERED)
def test_operations_unsupported_by_the_stage_are_composed(name, style, on_gpus):
    function, expected = LOWERED[name]
    if style == "comm":
        found = calls_in(lowered(function))
    else:
        found = calls_in(lowered(on_axis(lambda x: function(x, axis_name="i"))))
    assert found == list(expected)


def test_large_arrays_are_not_split_on_gpus(on_gpus):
    """The engine's device stage splits arrays, so the lowering need not."""
    operand = jax.ShapeDtypeStruct((1 << 24,), jnp.float32)
    traced = jax.jit(lambda x: jcc.bcast(x, root=0, codec="int8")).trace(operand)
    call_in(traced.lower(lowering_platforms=("cuda",)).as_text())


def test_send_and_recv_with_int8_encode_around_the_stage(on_gpus):
    ordered = jcc.world().ordered()

    def function(x):
        x = jcc.send(x, 0, codec="int8|lossless", comm=ordered)
        return jcc.recv(x, 0, codec="int8|lossless", comm=ordered)

    assert calls_in(lowered(function)) == [("send", "lossless"), ("recv", "lossless")]
    lossless = lowered(lambda x: jcc.recv(x, 0, codec="lossless", comm=ordered))
    assert calls_in(lossless) == [("recv", "lossless")]


def test_gpu_kernels_encode_before_the_stage_if_the_codec_has_kernels(on_gpus, monkeypatch):
    monkeypatch.setattr(
        platforms, "cuda_runs_on_streams", lambda codec, dtype: codec == "int8:block=64"
    )
    function = on_axis(lambda x: jcc.allreduce(x, axis_name="i", codec="int8:block=64|lossless"))
    text = lowered(function)
    found = re.findall(r"custom_call @(jaxccomp_\w+)", text)
    assert found == [
        *("jaxccomp_encode", "jaxccomp_collective", "jaxccomp_decode_sum"),
        *("jaxccomp_encode", "jaxccomp_collective", "jaxccomp_decode"),
    ]
    assert calls_in(text) == list(LOSSLESS)


def test_algorithm_option_is_accepted_for_raw_values_only(on_gpus):
    call_in(lowered(lambda x: jcc.allreduce(x, algorithm="ring:chunk=65536")))
    line = call_in(lowered(lambda x: jcc.bcast(x, codec="lossless", algorithm="auto:chunk=65536")))
    assert 'algorithm = "auto"' in line
    for codec in ("lossless", "int8"):
        with raises(errors.InvalidArgumentError, "bcast", "algorithm='chain'", "codec="):
            lowered(lambda x, codec=codec: jcc.bcast(x, codec=codec, algorithm="chain"))


def test_sendrecv_in_one_program_accepts_only_fixed_rate_codecs(on_gpus):
    def sendrecv(codec):
        return lambda x: jcc.sendrecv(x, dest=0, source=0, codec=codec)

    assert calls_in(lowered(sendrecv("int8"))) == [("sendrecv", "raw")]
    for codec in ("lossless", "int8|lossless"):
        with raises(
            errors.UnknownNameError, "sendrecv", "float32", "'raw', 'bf16'", 'backend="xla"'
        ):
            lowered(sendrecv(codec))


@pytest.mark.parametrize(
    "function,facts",
    [
        (
            lambda x, **how: jcc.bcast(x, root=0, codec="dgc", **how),
            ("bcast", "'dgc'", "float32", 'backend="xla"'),
        ),
        (
            lambda x, **how: jcc.bcast(x, root=0, codec="delta", ref=x, **how),
            ("bcast with ref=", "'delta'", "'bf16'"),
        ),
        (
            lambda x, **how: jcc.bcast(x, root=0, codec="lossless", ref=x, **how),
            ("bcast with ref=", "'lossless'", "'bf16'"),
        ),
        (lambda x, **how: jcc.allreduce(x, codec="lz4", **how), ("allreduce", "'lz4'", "float32")),
        (
            lambda x, **how: jcc.allreduce(x, codec="int8|lz4", **how),
            ("allreduce", "'int8|lz4'", "float32"),
        ),
    ],
)
def test_unsupported_codec_on_gpus_raises_an_error_that_lists_supported_ones(
    on_gpus, function, facts
):
    along = on_axis(lambda x: function(x, axis_name="i"))
    for each in (function, along):
        with raises(errors.UnknownNameError, facts) as raised:
            lowered(each)
        has = str(raised.value).partition("on GPUs; valid: ")[2].partition(". Take one")[0]
        assert "'int8'" in has and "'ternary'" in has
        assert not {"'dgc'", "'delta'", "'lz4'"}.intersection(has.split(", "))
        assert ("'lossless'" in has) == ("bcast with ref=" not in facts)


def test_collectives_of_other_platforms_use_the_xla_backend(on_gpus, monkeypatch):
    monkeypatch.setattr(platforms.Platform, "devices", lambda self: [])
    function = on_axis(lambda x: jcc.allreduce(x, axis_name="i"))
    assert "@jaxccomp_collective" not in lowered(function)
    native = on_axis(lambda x: jcc.allreduce(x, axis_name="i", backend="native"))
    with raises(errors.EngineUnavailableError, "allreduce", "('i',)", "jax.devices('cuda')"):
        lowered(native)


def test_missing_cuda_library_selects_xla_unless_native_is_requested(monkeypatch):
    monkeypatch.setattr(platforms, "why_no_cuda", lambda: "there is none; install it")
    assert "@jaxccomp_collective" not in lowered(on_axis(lambda x: jcc.allreduce(x, axis_name="i")))
    native = on_axis(lambda x: jcc.allreduce(x, axis_name="i", backend="native"))
    with raises(
        errors.EngineUnavailableError,
        "allreduce",
        'backend="native"',
        "axis_name=",
        'backend="xla"',
    ):
        lowered(native)


def test_gpus_are_opened_when_a_process_joins(monkeypatch):
    class Core:
        opened = []

        def cuda(self):
            return {"missing": ""}

        def open_cuda_devices(self, numbers):
            self.opened.append(numbers)
            return "GPU 1 cannot be used: it is busy"

    class Gpu:
        local_hardware_id, id = 1, 5

    core = Core()
    monkeypatch.setattr(platforms.engine, "load", lambda: core)
    monkeypatch.setattr(platforms.Platform, "local_devices", lambda self: [Gpu])
    platforms.open_gpus.cache_clear(), platforms.why_no_cuda.cache_clear()
    try:
        assert (
            platforms.why_no_cuda() == platforms.open_gpus() == "GPU 1 cannot be used: it is busy"
        )
    finally:
        platforms.open_gpus.cache_clear(), platforms.why_no_cuda.cache_clear()
    assert core.opened == [[(1, platforms.CUDA.number(5))]]


def test_cuda_is_used_only_if_all_ranks_have_the_library(monkeypatch):
    rows = [peer_info.Row(0, 1, 0, 1, lacks) for lacks in (0, 1, 0)]
    monkeypatch.setattr(platforms, "why_no_cuda", lambda: "")
    said = peer_info.who_lacks_cuda(rows)
    check_text(said, "rank 1", "python -m jaxccomp doctor")
    monkeypatch.setattr(platforms, "why_no_cuda", lambda: "no library")
    check_text(peer_info.who_lacks_cuda(rows), "rank 1", "no library")
    assert peer_info.who_lacks_cuda(rows[:1]) == ""


WITH_LIBRARY = """
import sys
from jaxccomp._native import engine, platforms
engine.load().add_library_path("jaxccomp_cuda", sys.argv[1])
missing = platforms.why_no_cuda()
engine.load().open_cuda_devices([(0, 1000)])  # which JAX does not have
print(missing or [
    platforms.cuda_runs(codec, dtype)
    for dtype in ("float32", "int8")
    for codec in ("raw", "lossless", "int8")
])
"""


@pytest.mark.skipif("JAXCCOMP_FAKE_CUDA" not in os.environ, reason="the C++ tests are not built")
@pytest.mark.parametrize(
    "setting,says",
    [
        ({}, "[True, True, False, True, False, True]"),
        ({"JAXCCOMP_FAKE_CUDA_VERSION": "0.0.1"}, "the CUDA library is of jaxccomp 0.0.1"),
        ({"JAXCCOMP_FAKE_CUDA_DEVICES": "0"}, "the fake driver is too old"),
    ],
)
def test_cuda_library_is_loaded_or_reports_why_not(setting, says):
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITH_LIBRARY, os.environ["JAXCCOMP_FAKE_CUDA"]],
        capture_output=True,
        text=True,
        timeout=patience.seconds(100),
        env=os.environ | setting,
    )
    assert says in done.stdout, done.stderr


def test_cuda_extras_require_the_library_of_the_same_version():
    text = (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for extra in ("cuda12", "cuda13"):
        assert f"jaxccomp-{extra}=={jcc.__version__}" in extras[extra]


def test_missing_cuda_library_message_names_the_pip_command():
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "from jaxccomp._native import platforms; print(platforms.why_no_cuda())",
        ],
        capture_output=True,
        text=True,
        timeout=patience.seconds(100),
    )
    if "pip install" not in done.stdout:
        pytest.skip("a CUDA library is installed here")
    assert "jaxccomp[cuda13]==" in done.stdout

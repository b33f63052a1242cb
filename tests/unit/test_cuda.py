"""What jitted operations become on GPUs, and what is said where they cannot be used."""

import os
import pathlib
import subprocess
import sys
import tomllib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import errors
from jaxccomp._bootstrap import peer_info
from jaxccomp._native import cuda, platforms

HAS = ("raw", "lossless", "bf16", "int8")


@pytest.fixture
def on_gpus(monkeypatch):
    """The CUDA library, with some codecs, and the CPU's devices as GPUs."""
    jcc.init()
    monkeypatch.setattr(cuda, "why_missing", lambda: "")
    monkeypatch.setattr(cuda, "runs", lambda codec, dtype: codec.partition(":")[0] in HAS)
    gpus = jax.devices("cpu")
    monkeypatch.setattr(platforms.Platform, "devices", lambda self: gpus)


def lowered(function, *operands, donate=()):
    operands = [jax.ShapeDtypeStruct((4, 5), jnp.float32) for _ in operands or "x"]
    traced = jax.jit(function, donate_argnums=donate).trace(*operands)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def on_axis(function):
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))
    return jax.shard_map(function, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)


def call_in(text):
    lines = [line for line in text.splitlines() if "@jaxccomp_collective" in line]
    assert len(lines) == 1, text
    return lines[0]


def test_a_communicators_operation_is_one_call(on_gpus):
    line = call_in(lowered(lambda x: jcc.bcast(x, root=0, codec="int8:block=64")))
    for part in (
        'collective = "bcast"',
        'codec = "int8:block=64"',
        'communicator = "world"',
        "groups = array<i64>,",
        "root = 0 : i64",
        "has_side_effect = true",
        "operand_layouts = [dense<[1, 0]> : tensor<2xindex>]",
        "result_layouts = [dense<[1, 0]> : tensor<2xindex>]",
    ):
        assert part in line


def test_an_axis_names_the_engines_numbers_of_gpus(on_gpus):
    line = call_in(lowered(on_axis(lambda x: jcc.allreduce(x, axis_name="i"))))
    device = jax.devices()[0].id
    assert f"groups = array<i64: {platforms.CUDA.first_number + device}>" in line


def test_donated_operands_give_their_memory(on_gpus):
    text = lowered(lambda x: jcc.allreduce(x), donate=(0,))
    assert "output_operand_alias<output_tuple_indices = [], operand_index = 0" in call_in(text)
    assert "output_operand_alias" not in call_in(lowered(lambda x: jcc.allreduce(x)))


def test_program_order_is_a_token(on_gpus):
    ordered = jcc.world().ordered()
    line = call_in(lowered(lambda x: jcc.allreduce(x, comm=ordered)))
    assert "!stablehlo.token" in line and "ordered = 1" in line


def test_export_for_cuda(on_gpus):
    operand = jax.ShapeDtypeStruct((3,), jnp.float32)
    checks = [jax.export.DisabledSafetyCheck.custom_call("jaxccomp_collective")]
    exported = jax.export.export(
        jax.jit(lambda x: jcc.allreduce(x)), platforms=["cuda"], disabled_checks=checks
    )(operand)
    assert exported.platforms == ("cuda",)
    assert "@jaxccomp_collective" in exported.mlir_module()


LACKS_TERNARY = "'ternary' of float32 on GPUs.* 'raw', 'lossless'"


def test_codecs_that_gpus_lack(on_gpus):
    for function in (
        lambda x: jcc.bcast(x, root=0, codec="ternary"),
        on_axis(lambda x: jcc.bcast(x, root=0, codec="ternary", axis_name="i")),
    ):
        with pytest.raises(errors.UnknownNameError, match=LACKS_TERNARY):
            lowered(function)
    xla = on_axis(lambda x: jcc.bcast(x, root=0, codec="ternary", axis_name="i", backend="xla"))
    assert "@jaxccomp_collective" not in lowered(xla)


def test_dtypes_that_a_codecs_kernels_lack(on_gpus, monkeypatch):
    monkeypatch.setattr(cuda, "runs", lambda codec, dtype: (codec, dtype) != ("int8", "float16"))
    with pytest.raises(errors.UnknownNameError, match="'int8' of float16 on GPUs") as raised:
        lowered(lambda x: jcc.allreduce((x, x.astype(jnp.float16)), codec="int8"))
    assert "'lossless'" in str(raised.value) and "'int8'," not in str(raised.value)
    call_in(lowered(lambda x: jcc.allreduce(x, codec="int8")))


def test_devices_of_another_platform_are_left_to_xla(on_gpus, monkeypatch):
    monkeypatch.setattr(platforms.Platform, "devices", lambda self: [])
    function = on_axis(lambda x: jcc.allreduce(x, axis_name="i"))
    assert "@jaxccomp_collective" not in lowered(function)
    native = on_axis(lambda x: jcc.allreduce(x, axis_name="i", backend="native"))
    with pytest.raises(errors.EngineUnavailableError, match="not those of platform 'cuda'"):
        lowered(native)


def test_without_the_library_xla_runs_what_it_can(monkeypatch):
    monkeypatch.setattr(cuda, "why_missing", lambda: "there is none; install it")
    assert "@jaxccomp_collective" not in lowered(on_axis(lambda x: jcc.allreduce(x, axis_name="i")))
    native = on_axis(lambda x: jcc.allreduce(x, axis_name="i", backend="native"))
    with pytest.raises(errors.EngineUnavailableError, match="there is none; install it"):
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
    monkeypatch.setattr(cuda.engine, "load", lambda: core)
    monkeypatch.setattr(platforms.Platform, "local_devices", lambda self: [Gpu])
    cuda.open_gpus.cache_clear(), cuda.why_missing.cache_clear()
    try:
        assert cuda.why_missing() == cuda.open_gpus() == "GPU 1 cannot be used: it is busy"
    finally:
        cuda.open_gpus.cache_clear(), cuda.why_missing.cache_clear()
    assert core.opened == [[(1, platforms.CUDA.number(5))]]


def test_ranks_decide_alike(monkeypatch):
    rows = [peer_info.Row(0, 1, 0, 1, lacks) for lacks in (0, 1, 0)]
    monkeypatch.setattr(cuda, "why_missing", lambda: "")
    said = peer_info.who_lacks_cuda(rows)
    assert said.startswith("rank 1 of the world") and "doctor" in said
    monkeypatch.setattr(cuda, "why_missing", lambda: "no library")
    assert "no library" in peer_info.who_lacks_cuda(rows)
    assert peer_info.who_lacks_cuda(rows[:1]) == ""


WITH_LIBRARY = """
import sys
from jaxccomp._native import cuda, engine
engine.load().add_library_path("jaxccomp_cuda", sys.argv[1])
missing = cuda.why_missing()
engine.load().open_cuda_devices([(0, 1000)])  # which JAX does not have
print(missing or [
    cuda.runs(codec, dtype)
    for dtype in ("float32", "float64")
    for codec in ("raw", "int8", "ternary")
])
"""


@pytest.mark.skipif("JAXCCOMP_FAKE_CUDA" not in os.environ, reason="the C++ tests are not built")
@pytest.mark.parametrize(
    "setting,says",
    [
        ({}, "[True, True, False, True, False, False]"),
        ({"JAXCCOMP_FAKE_CUDA_VERSION": "0.0.1"}, "the CUDA library is of jaxccomp 0.0.1"),
        ({"JAXCCOMP_FAKE_CUDA_DEVICES": "0"}, "the fake driver is too old"),
    ],
)
def test_the_library_is_found_where_python_says(setting, says):
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITH_LIBRARY, os.environ["JAXCCOMP_FAKE_CUDA"]],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | setting,
    )
    assert says in done.stdout, done.stderr


def test_the_extras_bring_the_librarys_own_version():
    text = (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for extra in ("cuda12", "cuda13"):
        assert f"jaxccomp-{extra}=={jcc.__version__}" in extras[extra]


ASKS = "from jaxccomp._native import cuda; print(cuda.why_missing())"


def test_without_a_library_the_remedy_is_said():
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "from jaxccomp._native import cuda; print(cuda.why_missing())",
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    if "pip install" not in done.stdout:
        pytest.skip("a CUDA library is installed here")
    assert "jaxccomp[cuda13]==" in done.stdout

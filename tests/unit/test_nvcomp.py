"""The codecs `nvcomp.*` without a GPU: their errors, and the library's interface."""

import importlib
import pathlib
import shutil
import subprocess
import sys

import patience
import pytest
from golden_errors import check_text, raises

from jaxccomp import codecs, errors
from jaxccomp._native import libraries

ROOT = pathlib.Path(__file__).parents[2]
NAMES = tuple(name for name in codecs.table() if name.startswith("nvcomp."))
FORMATS = ("ANS", "LZ4", "Zstd")
COMPILER = shutil.which("c++") or shutil.which("g++")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")


def headers():
    """Returns the folder of nvCOMP's headers, or None."""
    library = libraries.find("nvcomp")
    if not library:
        return None
    folder = pathlib.Path(library).parents[1] / "include"
    return folder if (folder / "nvcomp.h").exists() else None


@needs_compiler
@pytest.mark.skipif(headers() is None, reason="nvCOMP's headers are not found")
def test_declarations_match_nvcomp_headers():
    arguments = ["-std=c++20", "-fsyntax-only", f"-I{ROOT / 'csrc'}", f"-isystem{headers()}"]
    source = ROOT / "tests/cpp/nvcomp_abi.cc"
    done = subprocess.run([COMPILER, *arguments, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nvcomp_codecs_cover_all_batched_formats():
    assert {name.removeprefix("nvcomp.") for name in NAMES} == {f.lower() for f in FORMATS}
    for name in NAMES:
        row = codecs.table()[name]
        assert row.lossless and "chunk" in {option.name for option in row.options}


@pytest.mark.parametrize("name", NAMES)
def test_unavailable_nvcomp_codecs_name_gpu_and_package(name):
    missing = codecs.table()[name].missing
    if not missing:
        pytest.skip("there is a GPU, and nvCOMP")
    assert "NVIDIA" in missing and "jaxccomp[cuda13]" in missing
    with raises(errors.EngineUnavailableError, name, "'jaxccomp[cuda13]'", golden=False):
        codecs.parse(name)


def library(path, source):
    path.with_suffix(".c").write_text(source)
    command = [COMPILER, "-shared", "-fPIC", "-xc", path.with_suffix(".c"), "-o", path]
    subprocess.run(command, check=True)


@pytest.fixture
def with_a_gpu(tmp_path):
    """Runs a script with a fake driver that reports a GPU, and an nvCOMP of the given version."""

    def run(version, script):
        library(
            tmp_path / "cuda.so",
            "int cuInit(unsigned f) { return 0; }\n"
            "int cuDeviceGetCount(int* n) { *n = 1; return 0; }\n",
        )
        functions = (
            f"nvcompBatched{name}{function}"
            for name in FORMATS
            for function in (
                "CompressGetTempSize",
                "CompressGetMaxOutputChunkSize",
                "CompressAsync",
                "DecompressGetTempSize",
                "DecompressAsync",
            )
        )
        library(
            tmp_path / "nvcomp.so",
            f"int nvcompGetProperties(unsigned* p) {{ p[0] = {version}; p[1] = 0; return 0; }}\n"
            + "".join(f"int {name}(void) {{ return 11; }}\n" for name in functions),
        )
        begin = (
            "import numpy as np, jax, jaxccomp\n"
            "from jaxccomp import codecs, errors\n"
            "from jaxccomp._native import engine\n"
            f"engine.load().add_library_path('cuda', {str(tmp_path / 'cuda.so')!r})\n"
            f"engine.load().add_library_path('nvcomp', {str(tmp_path / 'nvcomp.so')!r})\n"
        )
        command = [sys.executable, "-P", "-c", begin + script]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=patience.seconds(120)
        )

    return run


@needs_compiler
def test_specs_are_parsed_and_checked_with_a_gpu(with_a_gpu):
    done = with_a_gpu(
        6001,
        "print(codecs.parse('nvcomp.lz4:shuffle=bit,chunk=131072'))\n"
        "print(codecs.parse('nvcomp.ans'))\n"
        "print(codecs.parse('bf16|nvcomp.zstd:chunk=65536'))\n"
        "for spec in ('nvcomp.zstd:chunk=16384', 'nvcomp.ans|lossless'):\n"
        "  try: codecs.parse(spec)\n"
        "  except errors.InvalidArgumentError as error: print(error)\n",
    )
    assert done.returncode == 0, done.stderr
    long, short, both, refused, pipeline = done.stdout.splitlines()
    assert (long, short) == ("nvcomp.lz4:chunk=131072", "nvcomp.ans")
    check_text(refused, "'nvcomp.zstd:chunk=16384'", "chunk=16384", "'65536', '131072'")
    assert both == "bf16|nvcomp.zstd"
    check_text(pipeline, "'nvcomp.ans|lossless'", "'nvcomp.ans'", "GPUs")


@needs_compiler
def test_nvcomp_codecs_refuse_host_values(with_a_gpu):
    done = with_a_gpu(
        6000,
        "try: codecs.encode('nvcomp.ans', np.ones(3, np.float32))\n"
        "except Exception as error: print(error)\n"
        "jax.config.update('jax_num_cpu_devices', 2)\n"
        "mesh = jax.sharding.Mesh(jax.devices(), ('i',))\n"
        "f = lambda x: jaxccomp.allreduce(x, axis_name='i', codec='nvcomp.ans')\n"
        "spec = jax.sharding.PartitionSpec('i')\n"
        "f = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))\n"
        "try: f(np.ones((2, 1 << 16), np.float32)).block_until_ready()\n"
        "except Exception as error: print(' '.join(str(error).split()))\n",
    )
    assert done.returncode == 0, done.stderr
    file, operation = done.stdout.splitlines()
    check_text(file, "'nvcomp.ans'", "NVIDIA", "host")
    check_text(operation, "'nvcomp.ans'", "GPU", "host", "'lossless'", golden=False)


@needs_compiler
def test_other_major_version_of_nvcomp_is_refused(with_a_gpu):
    done = with_a_gpu(5300, "print(codecs.table()['nvcomp.ans'].missing)\n")
    assert done.returncode == 0, done.stderr
    check_text(done.stdout, "nvCOMP 6", "5300")


def test_engine_and_gpu_check_find_the_same_nvcomp_library(monkeypatch, tmp_path):
    (tmp_path / "nvidia/libnvcomp/lib64").mkdir(parents=True)
    in_wheel = tmp_path / "nvidia/libnvcomp/lib64/libnvcomp.so.6"
    in_wheel.touch()
    monkeypatch.syspath_prepend(str(ROOT / "tests/gpu"))
    facts = importlib.import_module("facts")
    monkeypatch.delenv("JAXCCOMP_LIBNVCOMP", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    assert libraries.find("nvcomp") == facts.nvcomp() == str(in_wheel)
    monkeypatch.setenv("JAXCCOMP_LIBNVCOMP", "/elsewhere/libnvcomp.so.6")
    assert libraries.find("nvcomp") == facts.nvcomp() == "/elsewhere/libnvcomp.so.6"
    assert libraries.find("no_such_library") == ""

"""How the engine finds UCX, in an environment that has UCX from PyPI."""

import pathlib
import shutil
import subprocess
import sys

import pytest

from jaxccomp import config
from jaxccomp._native import libraries
from jaxccomp._runtime import ucx
from jaxccomp.cli import doctor

ROOT = pathlib.Path(__file__).parents[2]
COMPILER = shutil.which("c++") or shutil.which("g++")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_declarations_match_ucx_headers():
    include = pathlib.Path(libraries.find("ucp")).parents[1] / "include"
    arguments = ["-std=c++20", "-fsyntax-only", f"-I{ROOT / 'csrc'}", f"-isystem{include}"]
    source = ROOT / "tests/cpp/ucx_abi.cc"
    done = subprocess.run([COMPILER, *arguments, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_ucx_from_pypi_is_found():
    assert ucx.why_missing() == ""
    assert tuple(map(int, ucx.version().split(".")[:2])) >= ucx.MIN_VERSION
    worker, why = ucx.open_worker(shares_memory=True)
    assert why == "" and worker.address


def test_doctor_reports_ucx_version_and_path():
    found = libraries_found()
    assert found["UCX"]["version"] == ucx.version() and "libucp" in found["UCX"]["path"]
    assert "not installed" in found["MPI"]["missing"]


def test_doctor_reports_whether_cross_memory_attach_is_used(monkeypatch):
    assert libraries_found()["UCX"]["note"] == ""
    with config.override(ucx_cma="off"):
        assert 'memory: the option ucx_cma is "off"' in libraries_found()["UCX"]["note"]
    monkeypatch.setattr(pathlib.Path, "read_text", lambda path, encoding: "3\n")
    assert ucx.why_no_reads() == "kernel.yama.ptrace_scope is 3"


def libraries_found():
    return {each["name"]: each for each in doctor.facts()["libraries"]}


def test_invalid_libucp_path_falls_back_to_the_wheel():
    code = "from jaxccomp._runtime import ucx; print(ucx.why_missing())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        env={"JAXCCOMP_LIBUCP": __file__, "PATH": "", "JAX_PLATFORMS": "cpu"},
    )
    # The engine uses the next candidate, the wheel's library.
    assert done.returncode == 0 and done.stdout.strip() == "", done.stdout + done.stderr

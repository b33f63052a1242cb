"""The command line, and the report of `doctor`."""

import json
import re

import pytest
from golden_errors import check_text, raises

import jaxccomp
from jaxccomp import config, errors
from jaxccomp._native import engine
from jaxccomp._runtime.environment import Launcher
from jaxccomp.cli import doctor, main
from jaxccomp.launch import gpus


def test_missing_engine_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(engine, "_find", lambda: (None, "no such file"))
    with raises(errors.EngineUnavailableError, "no such file", 'backend="xla"', "pip install"):
        engine.load()


@pytest.mark.parametrize("name, fact", [("infos", "'infos'"), ("info", "'doctor'")])
def test_unknown_commands_are_named(name, fact, capsys):
    with pytest.raises(SystemExit):
        main.main([name])
    assert fact in capsys.readouterr().err


def test_version_option_prints_the_package_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert not ended.value.code
    assert capsys.readouterr().out == f"jaxccomp {jaxccomp.__version__}\n"


def test_doctor_prints_findings_then_facts(monkeypatch, capsys):
    monkeypatch.setattr(doctor.jax, "__version__", "0.99.0")
    assert main.main(["doctor"]) == 0  # only a warning
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].split()[:4] == ["warning", "JAX", "jax", "0.99.0"]
    assert lines[1].strip().startswith("-> pip install 'jax>=")
    assert re.fullmatch(r"JAX 0\.99\.0: (\d+) of \1 hooks work", lines[2])
    titles = [line for line in lines[3:] if line and not line.startswith(" ")]
    sections = ["environment", "libraries", "backends", "algorithms", "codecs"]
    sections += ["XLA's collectives", "options"]
    assert [each for each in titles if each != "entry points"] == sections


def test_doctor_json_prints_one_document(monkeypatch, capsys):
    monkeypatch.setenv("JAXCCOMP_CHUNK_BYTES", str(config.get("chunk_bytes")))
    with config.override(spin_microseconds=7):
        assert main.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [
        *("findings", "environment", "hooks", "libraries", "backends", "collectives", "codecs"),
        *("options", "entry_points", "xla_collectives"),
    ]
    libraries = {each["name"]: each for each in found["libraries"]}
    assert libraries["engine"]["path"].endswith(".so") and not libraries["engine"]["missing"]
    assert {"native", "mpi", "xla"} <= {each["name"] for each in found["backends"]}
    assert "chain" in found["collectives"]["bcast"]
    assert {"lossless", "int8"} <= {each["name"] for each in found["codecs"]}
    options = {each["name"]: each for each in found["options"]}
    assert options["chunk_bytes"]["source"] == "JAXCCOMP_CHUNK_BYTES"
    assert (options["spin_microseconds"]["value"], options["spin_microseconds"]["source"]) == (
        *(7, "program"),
    )
    assert options["backend"]["source"] == "default"


@pytest.mark.parametrize(
    "given, fact",
    [
        ({}, ""),
        ({"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi"}, "names no library"),
        ({"MPITRAMPOLINE_LIB": "LIBRARY"}, "JAX_CPU_COLLECTIVES_IMPLEMENTATION is not mpi"),
        (
            {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi", "MPITRAMPOLINE_LIB": "LIBRARY"},
            "on",
        ),
    ],
)
def test_doctor_checks_the_variables_of_xla_collectives(given, fact, monkeypatch):
    needed = engine.xla_variables()
    for name in needed:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value.replace("LIBRARY", needed["MPITRAMPOLINE_LIB"]))
    found = doctor._xla_collectives()
    assert found["variables"] == needed and list(needed.values())[0] == "mpi"
    assert found["active"] == (fact == "on")
    assert found["problem"] == "" if fact in ("", "on") else fact in found["problem"]


def findings(monkeypatch, **changes):
    """Returns the findings of `doctor` on a machine without GPUs or MPI, with changes."""
    usual = {
        "gpus": gpus.Found((), "none here"),
        "installed": False,
        "no_ucx": "no UCX",
        "launcher": None,
    }
    known = usual | changes
    monkeypatch.setattr(doctor.gpus, "find", lambda: known["gpus"])
    monkeypatch.setattr(doctor.mpi, "installed", lambda: known["installed"])
    monkeypatch.setattr(doctor.mpi, "launcher", lambda: known["launcher"])
    monkeypatch.setattr(doctor.ucx, "_found", lambda: ("1.20.1", known["no_ucx"]))
    return {each["name"]: each for each in doctor.examine()["findings"]}


def test_doctor_exits_with_1_without_the_engine(monkeypatch, capsys):
    monkeypatch.setattr(engine, "_find", lambda: (None, "no such file"))
    found = findings(monkeypatch)
    assert list(found)[0] == "engine" and found["engine"]["severity"] == "error"
    check_text(found["engine"]["problem"], "no such file")
    assert found["engine"]["remedy"]
    assert main.main(["doctor"]) == 1
    assert capsys.readouterr().out.startswith("error    engine")


def test_doctor_recommends_mpi_if_processes_need_it(monkeypatch):
    assert findings(monkeypatch, no_ucx="") == {}
    found = findings(monkeypatch)["MPI"]
    assert found["severity"] == "warning" and "jaxccomp[mpich]" in found["remedy"]
    found = findings(monkeypatch, no_ucx="", launcher=Launcher("Open MPI", 0, 2))["MPI"]
    assert found["severity"] == "error"
    check_text(found["problem"], "Open MPI", "mpi4py")


def test_doctor_recommends_the_cuda_library_on_machines_with_a_gpu(monkeypatch):
    one = gpus.Found((gpus.Gpu("GPU-1"),), "nvidia-smi lists 1 GPU(s)")
    found = findings(monkeypatch, no_ucx="", gpus=one)["libjaxccomp_cuda"]
    assert found["severity"] == "warning" and "jaxccomp[cuda13]" in found["remedy"]

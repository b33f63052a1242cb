import json

import pytest

from jaxccomp import errors
from jaxccomp._native import engine
from jaxccomp.cli import main
from jaxccomp.launch import gpus


def test_info_shows_all_sections(capsys):
    assert main.main(["info"]) == 0
    out = capsys.readouterr().out
    for word in ("versions", "engine", "MPI", "codecs", "options", "JAXCCOMP_BACKEND"):
        assert word in out


def test_info_gives_reasons_for_what_is_missing(monkeypatch, capsys):
    from jaxccomp.cli import info

    monkeypatch.setattr(engine, "_find", lambda: (None, "no such file"))
    monkeypatch.setattr(info.mpi, "installed", lambda: False)
    assert main.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "missing: no such file" in out
    assert "pip install 'jaxccomp[mpich]'" in out


def test_the_engine_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(engine, "_find", lambda: (None, "no such file"))
    with pytest.raises(errors.EngineUnavailableError, match=r'no such file.*backend="xla"'):
        engine.load()


def test_unknown_commands(capsys):
    with pytest.raises(SystemExit):
        main.main(["infos"])
    assert "invalid choice" in capsys.readouterr().err


def doctor(capsys):
    assert main.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    return {row["name"]: row for row in found}


def test_doctor_fits_on_a_screen(capsys):
    assert main.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and all(len(line) <= 132 for line in lines)
    found = doctor(capsys)
    for name in ("JAX", "engine", "MPI", "transports", "codecs", "CUDA library", "driver", "NCCL"):
        assert name in found
    assert "meet over its key-value store" in found["store"]["detail"]
    assert found["engine"]["state"] == "ok"


def test_doctor_says_what_to_do(monkeypatch, capsys):
    from jaxccomp.cli import doctor_gpu, doctor_mpi

    gpu = gpus.Found((gpus.Gpu("GPU-1"),), "nvidia-smi lists 1 GPU(s)")
    monkeypatch.setattr(engine, "_find", lambda: (None, "no such file"))
    monkeypatch.setattr(doctor_mpi.mpi, "installed", lambda: False)
    monkeypatch.setattr(doctor_gpu.gpus, "find", lambda: gpu)
    monkeypatch.setattr(doctor_gpu, "driver_version", lambda: "")
    found = doctor(capsys)
    assert found["engine"]["state"] == "missing" and "no such file" in found["engine"]["detail"]
    assert "jaxccomp[mpich]" in found["MPI"]["remedy"]
    assert found["GPUs"]["state"] == "ok" and found["driver"]["state"] == "missing"
    assert "driver" in found["driver"]["remedy"]
    assert found["CUDA library"]["state"] == "missing"


def test_doctor_does_not_ask_for_gpu_libraries_where_there_is_no_gpu(monkeypatch, capsys):
    from jaxccomp.cli import doctor_gpu

    monkeypatch.setattr(doctor_gpu.gpus, "find", lambda: gpus.Found((), "none here"))
    monkeypatch.setattr(doctor_gpu, "driver_version", lambda: "")
    found = doctor(capsys)
    assert found["GPUs"] == {"name": "GPUs", "state": "none", "detail": "none here", "remedy": ""}
    assert found["driver"]["state"] == "none"
    monkeypatch.setattr(doctor_gpu, "driver_version", lambda: "13.0")
    assert doctor(capsys)["driver"]["detail"] == "up to CUDA 13.0"

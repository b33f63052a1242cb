"""Baselines and tables of programs that mix operations, without a testbed."""

import importlib.util
import sys

import pytest
from golden_errors import check_text
from testbed import mix, programs, scenario

from jaxccomp import config

LINE = {"program": "dlrm", "received_bytes_per_step": 2_000_000, "loss": 0.25}


def test_table_compares_baselines_by_program():
    lines = [
        {"facts": {}},
        LINE | {"contender": "auto", "seconds": 0.08},
        LINE | {"contender": "engine over MPI", "seconds": 0.125},
        LINE | {"contender": "engine over UCX", "seconds": 0.1},
        {"program": "dlrm", "contender": "xla over gloo", "left_out": "of axes"},
        {"program": "moe_alltoall", "contender": "auto", "error": "exit status 1"},
        LINE | {"program": "tensor_pipeline", "contender": "auto", "seconds": 0.5},
    ]
    assert mix.table(lines).splitlines() == [
        "| program | contender | steps a second | of the best alone | received a step | loss |",
        "|---|---|---:|---:|---:|---:|",
        "| dlrm | auto | 12.50 | +25% | 2.00 MB | 0.2500 |",
        "| dlrm | engine over MPI | 8.00 | -20% | 2.00 MB | 0.2500 |",
        "| dlrm | engine over UCX | 10.00 | +0% | 2.00 MB | 0.2500 |",
        "| tensor_pipeline | auto | 2.00 |  | 2.00 MB | 0.2500 |",
        "",
        "Left out: dlrm, xla over gloo: of axes.",
        "Failed: moe_alltoall, auto: exit status 1.",
    ]


def test_baselines_use_existing_options():
    for contender in mix.CONTENDERS.values():
        for variable, value in contender.env.items():
            if variable.startswith("JAXCCOMP_"):
                name = variable.removeprefix("JAXCCOMP_").lower()
                with config.override(**{name: value}):
                    assert config.get(name) == value
        assert contender.codec == "raw" or contender.has_profile
    assert mix.CONTENDERS[mix.AUTO].env == {}


@pytest.mark.parametrize("option", [["--rounds", "0"], ["--epochs", "1"]])
def test_options_without_measured_steps_are_refused(option, capsys, monkeypatch):
    monkeypatch.setattr(scenario.command_line, "exit_on_signals", lambda: None)
    assert mix.main(option) == 2
    check_text(capsys.readouterr().err, "--rounds", "1", "--epochs", "2")


def test_baselines_report_programs_that_they_cannot_run(monkeypatch):
    monkeypatch.setattr(mix.ucx, "why_missing", lambda: "no UCX")
    dlrm, dense = "dlrm", "tensor_pipeline"
    on_mesh = mix.CONTENDERS["xla over gloo"]
    assert "needs axes" in on_mesh.why_not(dlrm) and not on_mesh.why_not(dense)
    assert mix.CONTENDERS["engine over UCX"].why_not(dense) == "no UCX"
    assert not mix.CONTENDERS[mix.AUTO].why_not(dlrm)
    by_mpi = mix.CONTENDERS["MPI's own"]
    assert by_mpi.why_not(dense) == "there is no sendrecv" and not by_mpi.why_not(dlrm)


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("flax", "optax", "sklearn")),
    reason="needs the extra 'demo'",
)
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_programs_are_examples_that_accept_the_options(name, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(programs.EXAMPLES), *sys.path])
    example = importlib.import_module(name)
    program = programs.PROGRAMS[name]
    assert example.parser().parse_args(program.options).features in (64, 256)
    assert hasattr(example, "train_on_mesh") == program.on_meshes

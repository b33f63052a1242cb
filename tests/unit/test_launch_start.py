"""Reasons not to start a job: too little shared memory, an earlier signal, srun; Slurm's hosts."""

import signal
import types

import pytest
from golden_errors import check_text

from jaxccomp import errors
from jaxccomp._runtime import environment
from jaxccomp.cli import run
from jaxccomp.launch import job, signals

KIB = 1 << 10


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A folder with some KiB of free space."""

    def make(free):
        found = types.SimpleNamespace(f_bavail=free, f_blocks=64 * KIB, f_frsize=KIB)
        monkeypatch.setattr(environment.os, "statvfs", lambda folder: found)
        return str(tmp_path)

    return make


def test_too_little_shared_memory_error_names_required_and_free_sizes(room):
    assert not environment.why_too_little_memory("MPICH", 4, folder=room(4200))
    text = environment.why_too_little_memory("MPICH", 4, folder=room(4000))
    check_text(text, "4000 KiB", "65536 KiB", "MPICH", "4140 KiB")
    assert not environment.why_too_little_memory("Open MPI", 4, folder=room(0))


def test_shared_memory_check_counts_files_of_started_ranks(room, tmp_path):
    """The first ranks write to /dev/shm before the last ranks check its free space."""
    (tmp_path / "mpich_shm_1").write_bytes(bytes(3000 * KIB))
    assert not environment.why_too_little_memory("MPICH", 4, starting=True, folder=room(1200))
    assert environment.why_too_little_memory("MPICH", 4, folder=room(1200))


def test_shared_memory_check_passes_without_the_folder():
    assert not environment.why_too_little_memory("MPICH", 4, folder="/nowhere")


def test_job_does_not_start_after_a_lost_sigint(monkeypatch):
    """A signal during the preparation of a job; its exception was lost in a callback."""
    monkeypatch.setattr(signals, "_ended_by", 0)
    with pytest.raises(SystemExit):
        signals.end(signal.SIGINT)
    monkeypatch.setattr(job._Run, "_command", lambda *_: ["true"])
    monkeypatch.setattr(job.subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    outcome = job.run(job.Job(1, ["program.py"]))
    assert outcome == job.Outcome(130, "ended by SIGINT") and outcome.interrupted


@pytest.mark.parametrize(
    "argv,original,right",
    [
        (["-m", "run"], ["python", "-P", "-m", "jaxccomp", "run"], True),
        (["-m"], ["python", "-m", "pytest"], False),
        (["program.py", "-m", "jaxccomp"], ["python", "program.py", "-m", "jaxccomp"], False),
    ],
)
def test_is_command_recognizes_the_original_command_line(argv, original, right):
    assert signals.is_command(argv, original) == right


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A scontrol that lists two hosts."""
    script = tmp_path / "scontrol"
    script.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames node[1-2]" ] && printf "node1\\nnode2\\n"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_hosts_of_a_slurm_allocation_are_listed(scontrol, capsys):
    hosts = run._allocated_hosts
    both = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURMD_NODENAME": "node1"}
    assert hosts(both) == ["node1", "node2"]
    assert "Slurm's allocation: node1, node2" in capsys.readouterr().err
    assert hosts({"SLURM_JOB_NODELIST": "node1", "SLURMD_NODENAME": "node1"}) == []
    assert hosts({}) == []
    with pytest.raises(errors.LaunchError) as caught:
        hosts({"SLURM_JOB_NODELIST": "login[7-8]"})
    check_text(str(caught.value), "login[7-8]", "--hosts localhost")


def test_missing_scontrol_raises_launch_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.LaunchError, match="scontrol does not list them"):
        run._allocated_hosts({"SLURM_JOB_NODELIST": "node1"})  # on a login node


def test_launcher_started_by_srun_several_times_raises():
    assert run._allocated_hosts({"SLURM_STEP_NUM_TASKS": "1"}) == []
    with pytest.raises(errors.InvalidArgumentError) as caught:
        run._allocated_hosts({"SLURM_STEP_NUM_TASKS": "4"})
    check_text(str(caught.value), "srun has started 4 processes", "srun python PROGRAM")

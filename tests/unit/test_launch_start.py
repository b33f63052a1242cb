"""Reasons not to start a job: too little shared memory, or an earlier signal."""

import signal
import types

import pytest
from golden_errors import check_text

from jaxccomp._runtime import environment
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


def test_too_little_shared_memory_names_the_sizes(room):
    assert not environment.why_too_little_memory("MPICH", 4, folder=room(4200))
    text = environment.why_too_little_memory("MPICH", 4, folder=room(4000))
    check_text(text, "4000 KiB", "65536 KiB", "MPICH", "4140 KiB")
    assert not environment.why_too_little_memory("Open MPI", 4, folder=room(0))


def test_shared_memory_that_ranks_have_taken_already(room, tmp_path):
    """The first ranks write to /dev/shm before the last ranks check its free space."""
    (tmp_path / "mpich_shm_1").write_bytes(bytes(3000 * KIB))
    assert not environment.why_too_little_memory("MPICH", 4, starting=True, folder=room(1200))
    assert environment.why_too_little_memory("MPICH", 4, folder=room(1200))


def test_no_folder():
    assert not environment.why_too_little_memory("MPICH", 4, folder="/nowhere")


def test_a_signal_that_python_has_lost(monkeypatch):
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
def test_commands(argv, original, right):
    assert signals.is_command(argv, original) == right

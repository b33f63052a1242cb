"""Joining the other processes under mpiexec."""

import contextlib
import pathlib

import patience
import pytest
from contract.selection import ALL

from jaxccomp.bench import launch
from jaxccomp.launch import ports

WORKER = str(pathlib.Path(__file__).with_name("join_worker.py"))


ALONE = [("groups", 1), ("groups", 4), ("spaces", 2), ("freed", 3), ("refusals", 3)]
# One launch for all cases that join in the usual way.
TOGETHER = [("groups,spaces,refusals,freed", 4)]


@pytest.mark.parametrize(
    "cases,ranks",
    [
        *(ALONE if ALL else TOGETHER),
        ("late", 2),
        ("split_again", 3),
        ("distributed", 3),
        ("disagreement", 4),
    ],
)
def test_join(cases, ranks):
    with contextlib.ExitStack() as stack:
        needed = {"distributed": 1, "disagreement": 2}.get(cases, 0)
        numbers = [str(stack.enter_context(ports.reserved())) for _ in range(needed)]
        done = launch.run(ranks, [WORKER, cases, *numbers], timeout_seconds=patience.seconds(120))
    assert not done.error, done.output


def test_a_launcher_of_another_mpi_is_named(monkeypatch):
    """An error instead of an abort, before anything is sent."""
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    import subprocess
    import sys

    code = "import jaxccomp; jaxccomp.init()"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "InitializationError" in done.stderr
    assert "mpiexec" in done.stderr

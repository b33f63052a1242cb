"""Joining the other processes under mpiexec."""

import contextlib
import os
import pathlib
import subprocess
import sys

import patience
import pytest
from contract.selection import ALL
from ucx import processes

from jaxccomp._runtime import ucx
from jaxccomp.bench import launch
from jaxccomp.launch.processes import reserved_port

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
def test_processes_join_groups_or_are_refused(cases, ranks):
    with contextlib.ExitStack() as stack:
        needed = {"distributed": 1, "disagreement": 2}.get(cases, 0)
        numbers = [str(stack.enter_context(reserved_port())) for _ in range(needed)]
        done = launch.run(ranks, [WORKER, cases, *numbers], timeout_seconds=patience.seconds(120))
    assert not done.error, done.output


def test_launcher_of_another_mpi_raises_an_error_that_names_it(monkeypatch):
    """An error instead of an abort, before anything is sent."""
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    code = "import jaxccomp; jaxccomp.init()"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "InitializationError" in done.stderr
    assert "mpiexec" in done.stderr


SLURM = {
    "SLURM_JOB_ID": "42",
    "SLURM_PROCID": "{rank}",
    "SLURM_LOCALID": "{rank}",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
}


def _error_of_init(variables):
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import jaxccomp; jaxccomp.init()"],
        env=processes.environment(0, 1, 0) | {k: v.format(rank=0) for k, v in variables.items()},
        capture_output=True,
        text=True,
        timeout=patience.seconds(60),
    )
    return done.stderr.strip().splitlines()[-1]


def test_error_under_slurm_names_the_options_to_join():
    last = _error_of_init(SLURM | {"SLURM_STEP_ID": "0"})
    assert "the launcher (Slurm) started 2 processes" in last
    for remedy in (
        "srun --mpi=pmix" if launch.vendor()[0] == "Open MPI" else "srun --mpi=pmi2",
        "jax.distributed.initialize()",
        "JAXCCOMP_MPI=never",
        "JAXCCOMP_TRANSPORT=ucx",
        "pip install 'jaxccomp[ucx]'",
    ):
        assert remedy in last


@pytest.mark.skipif(launch.vendor()[0] != "MPICH", reason="Open MPI joins by PMIx")
def test_mpich_without_pmix_is_not_started_under_pmix():
    """MPICH would abort the process; `srun --mpi=pmix` sets these variables."""
    last = _error_of_init({"PMIX_RANK": "{rank}", "PMIX_NAMESPACE": "a.0", "SLURM_STEP_ID": "0"})
    assert "was started by PMIx, but mpi4py has loaded MPICH" in last
    assert "`srun --mpi=pmi2`, which fits MPICH" in last


@pytest.mark.skipif(
    "JAXCCOMP_LIBUCP" not in os.environ and bool(ucx.why_missing()), reason="needs UCX"
)
@pytest.mark.parametrize(
    "variables",
    [
        pytest.param(SLURM, id="slurm"),
        # An MPI is started, and finds only its own process.
        pytest.param({"PMI_RANK": "{rank}", "PMI_SIZE": "2"}, id="alone"),
        pytest.param({"PMIX_RANK": "{rank}"}, id="pmix"),
        pytest.param(
            {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2"}, id="open_mpi"
        ),
    ],
)
def test_processes_of_jax_distributed_need_no_mpi(variables):
    """jax.distributed has joined the processes: a launcher's variables do not make them fail."""
    worker = pathlib.Path(__file__).parents[1] / "ucx" / "program_worker.py"
    started = processes.start(2, [str(worker), "styles"], variables)
    texts = processes.finish(started, 120)
    for each, text in zip(started, texts, strict=True):
        assert each.returncode == 0, text
        found = processes.answer(text)
        assert found["way"] in (["local", "ucx+cma"], ["local", "ucx"])
        assert found["sum"] == found["by_rank"] == 3

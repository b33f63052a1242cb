"""Detection of child processes that have inherited a rank's variables."""

import os
import socket
import sys
import types

import pytest
from golden_errors import check_text

from jaxccomp._runtime import environment

MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "job@1",
}


def why(environ, *, uses_variables=True, starts_mpi=True):
    return environment.why_no_rank(environ, uses_variables=uses_variables, starts_mpi=starts_mpi)


def marked(environ, pid):
    return environ | {environment.MARK: f"{pid} {environment._identity(environ)}"}


@pytest.fixture
def worker(monkeypatch):
    """The state of a multiprocessing worker while it imports the main program."""
    monkeypatch.setitem(sys.modules, "__mp_main__", types.ModuleType("__mp_main__"))


@pytest.mark.parametrize("environ", [MPICH, OPEN_MPI], ids=["MPICH", "Open MPI"])
def test_processes_started_by_a_launcher_may_join(environ):
    assert not why(environ)
    assert not why(marked(environ, os.getpid()))


@pytest.mark.parametrize("environ", [MPICH, OPEN_MPI], ids=["MPICH", "Open MPI"])
def test_child_process_of_a_rank_is_refused_by_rank_and_pid(environ):
    check_text(why(marked(environ, 7)), "rank 1", "process 7")


def test_ranks_of_a_job_started_by_a_rank_may_join():
    assert not why(marked(OPEN_MPI, 7) | {"PMIX_NAMESPACE": "job@2"})
    assert not why(marked({"SLURM_JOB_ID": "1"}, 7) | MPICH)


def test_multiprocessing_workers_of_a_rank_are_refused(worker):
    assert "multiprocessing" in why(MPICH)
    assert "multiprocessing" in why(marked(MPICH, os.getppid()))
    # Also if the program passes its rank to init(): the worker does the same.
    assert f"process {os.getppid()}" in why(marked({}, os.getppid()), uses_variables=False)


def test_multiprocessing_workers_may_be_ranks_if_their_parent_is_none(worker):
    """The main process is not a rank; its workers are ranks."""
    assert not why(MPICH, uses_variables=False)


def test_inherited_or_closed_connection_to_mpiexec_is_detected():
    ends = socket.socketpair()
    environ = MPICH | {"PMI_FD": str(ends[0].fileno())}
    child = marked(environ, 7)
    assert not why(environ)
    check_text(why(child), "rank 1", "process 7")
    assert not why(child, uses_variables=False)
    other = socket.socketpair()
    assert not why(child | {"PMI_FD": str(other[0].fileno())})  # another mpiexec's connection
    for each in ends:
        each.close()
    check_text(why(environ), "mpiexec")
    assert not why(environ, starts_mpi=False)
    for each in other:
        each.close()

"""Ranks that fail: the errors of other ranks, their delay, and the ends of programs."""

import pathlib

import patience
import pytest
from contract import together
from stress import survivors

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("failure_worker.py"))
# No case reaches this deadline; it is also MPI_Finalize's time limit after an exception.
LIMITS = {"JAXCCOMP_TIMEOUT_SECONDS": f"{patience.seconds(40):g}"}


@pytest.mark.parametrize(
    "case",
    [
        "raises_early",
        "raises_late",
        pytest.param("raises_with_a_thread", marks=pytest.mark.slow),
    ],
)
def test_exception_of_one_rank_raises_on_all_ranks(case):
    done = launch.run(3, [WORKER, case], env=LIMITS, timeout_seconds=patience.seconds(80))
    assert done.error == "exit status 1", done.output
    assert done.output.count("was told") == 2, done.output


# The number of ranks that print "goes on".
GOING_ON = {
    "interrupted": 0,
    "interrupted_in_a_notebook": 0,
    "interrupted_between": 0,
    "interrupted_by_choice": 0,
    "forks": 3,
    "ends_late": 2,
}


@pytest.mark.parametrize("cases", together(*GOING_ON))
def test_other_ranks_notice_interrupts_and_survive_forks_and_late_exits(cases):
    done = launch.run(
        3, [WORKER, ",".join(cases)], env=LIMITS, timeout_seconds=patience.seconds(80)
    )
    assert not done.error, done.output
    interrupted = {"interrupted", "interrupted_in_a_notebook"} & set(cases)
    assert done.output.count("was interrupted") == len(interrupted), done.output
    assert done.output.count("goes on") == sum(map(GOING_ON.get, cases)), done.output


def test_send_to_a_rank_without_operations_ends_at_its_deadline():
    arguments = [WORKER, "sends_before_the_first_operation"]
    done = launch.run(3, arguments, env=LIMITS, timeout_seconds=patience.seconds(80))
    assert not done.error, done.output
    assert done.output.count("goes on") == 3, done.output


def test_rank_missing_in_split_is_named():
    arguments = [WORKER, "split_alone", f"{patience.seconds(0.5):g}"]
    done = launch.run(3, arguments, env=LIMITS, timeout_seconds=patience.seconds(80))
    assert not done.error, done.output
    assert done.output.count("was told") == 2, done.output


def run_with_survivors(arguments, *, ranks=3, shell=False):
    """Run under an mpiexec that keeps ranks alive after one has died; only MPICH's does."""
    if reason := survivors.why_not():
        pytest.skip(reason)
    watch = patience.Stopwatch()
    output = survivors.run(
        ranks, arguments, LIMITS, timeout_seconds=patience.seconds(80), shell=shell
    )
    return output, watch.seconds()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how,shell,mpi4py",
    [("exits", False, False), ("exits", True, True), ("is_killed", True, False)],
)
def test_survivors_notice_a_killed_rank_and_exit(how, shell, mpi4py):
    program = [WORKER, "vanishes", how]
    if mpi4py:  # which then finalises MPI
        code = "import runpy, sys; from mpi4py import MPI; sys.argv = sys.argv[1:]; "
        program = ["-c", code + "runpy.run_path(sys.argv[0], run_name='__main__')", *program]
    output, seconds = run_with_survivors(program, shell=shell)
    assert output.count("was told") == 2, output
    assert seconds < 60, output


@pytest.mark.slow
def test_survivors_shrink_and_agree_twice():
    output, _ = run_with_survivors([WORKER, "survives_twice"], ranks=4)
    assert output.count("was told") == 2, output


def test_child_processes_of_ranks_are_no_ranks():
    """multiprocessing workers and other helpers get an error or work alone; ranks continue."""
    worker = str(pathlib.Path(__file__).with_name("helpers_worker.py"))
    done = launch.run(2, [worker], env=LIMITS, timeout_seconds=patience.seconds(100))
    assert not done.error, done.output
    assert done.output.count("right") == 2, done.output

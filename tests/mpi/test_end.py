"""The ends of programs under mpiexec."""

import pathlib

import patience
import pytest

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("end_worker.py"))


LIMITS = {"JAXCCOMP_TIMEOUT_SECONDS": f"{patience.seconds(90):g}"}
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


@pytest.mark.parametrize(
    "case,env",
    [
        pytest.param("idle", {}, marks=pytest.mark.slow),
        ("leave", {}),
        pytest.param("leave", {}, marks=pytest.mark.slow),
        pytest.param("leave", {}, marks=pytest.mark.slow),
        ("finalize", {}),
        ("leave_early", {}),
        pytest.param("leave_queued", {}, marks=pytest.mark.slow),
        ("leave_dropped", {}),
        pytest.param("leave_dropped", TWO_DEVICES, marks=pytest.mark.slow),
    ],
)
def test_program_ends_without_a_deadline(case, env, tmp_path):
    # No rank ended by a deadline, or by the time limit of ranks that end.
    env = LIMITS | env | {"JAXCCOMP_TEST_FOLDER": str(tmp_path)}
    done = in_time([WORKER, case], env)
    assert not done.error, done.output


def in_time(program, env=LIMITS):
    """Run a program on two ranks, in much less time than an operation's deadline."""
    watch = patience.Stopwatch()
    done = launch.run(2, program, env=env, timeout_seconds=patience.seconds(150))
    assert watch.seconds() < 60
    return done


def test_program_ends_after_an_uncaught_exception():
    done = in_time([WORKER, "leave_failed"])
    assert done.error == "exit status 1" and "RuntimeError: on purpose" in done.output
    assert "rank 0 was told at once" in done.output, done.output

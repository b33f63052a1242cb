"""The ends of programs under mpiexec."""

import pathlib
import time

import pytest

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("end_worker.py"))


LIMITS = {"JAXCCOMP_TIMEOUT_SECONDS": "90"}
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
        ("leave_queued", {}),
        ("leave_dropped", {}),
        ("leave_dropped", TWO_DEVICES),
    ],
)
def test_end(case, env):
    start = time.monotonic()
    done = launch.run(2, [WORKER, case], env=LIMITS | env, timeout_seconds=150)
    assert not done.error, done.output
    # Nobody was freed by a deadline, nor by the patience of those that end.
    assert time.monotonic() - start < 60


def test_end_after_an_uncaught_exception():
    done = launch.run(2, [WORKER, "leave_failed"], env=LIMITS, timeout_seconds=150)
    assert done.error == "exit status 1" and "RuntimeError: on purpose" in done.output
    assert "rank 0 was told at once" in done.output, done.output

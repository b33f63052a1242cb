"""The ends of programs under mpiexec."""

import pathlib
import time

import pytest

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("end_worker.py"))


@pytest.mark.parametrize("case", ["idle", "leave", "leave", "leave", "finalize", "leave_early"])
def test_end(case):
    start = time.monotonic()
    done = launch.run(
        2, [WORKER, case], env={"JAXCCOMP_TIMEOUT_SECONDS": "90"}, timeout_seconds=150
    )
    assert not done.error, done.output
    # Nobody was freed by a deadline, nor by the patience of those that end.
    assert time.monotonic() - start < 60

"""What MPI may still write into is never given back."""

import pathlib

import pytest

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("late_payload_worker.py"))


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", [151])
def test_late_payload(milliseconds):
    env = {"JAXCCOMP_TIMEOUT_SECONDS": "2"}
    done = launch.run(2, [WORKER, str(milliseconds)], env=env, timeout_seconds=80)
    # Ranks do not end in order, so the exit status says nothing.
    assert "rank 1: right" in done.output, done.output

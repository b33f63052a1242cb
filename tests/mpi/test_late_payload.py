"""Memory that MPI may still write to is never released."""

import pathlib

import patience
import pytest

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("late_payload_worker.py"))


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", [151])
def test_late_payload_does_not_overwrite_reused_memory(milliseconds):
    # The deadline and the work after it take less than half of the time that a rank is stopped.
    env = {"JAXCCOMP_TIMEOUT_SECONDS": "2"}
    arguments = [WORKER, str(milliseconds), f"{patience.seconds(3.5):.1f}"]
    done = launch.run(2, arguments, env=env, timeout_seconds=patience.seconds(80))
    # Ranks exit abnormally: ignore the exit status.
    assert "rank 1: right" in done.output, done.output

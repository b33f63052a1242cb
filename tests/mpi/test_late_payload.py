"""What MPI may still write into is never given back."""

import pathlib

import patience
import pytest

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("late_payload_worker.py"))


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", [151])
def test_late_payload(milliseconds):
    # The deadline and what follows it are not half of the time for which a rank is stopped.
    env = {"JAXCCOMP_TIMEOUT_SECONDS": "2"}
    arguments = [WORKER, str(milliseconds), f"{patience.seconds(3.5):.1f}"]
    done = launch.run(2, arguments, env=env, timeout_seconds=patience.seconds(80))
    # Ranks do not end in order, so the exit status says nothing.
    assert "rank 1: right" in done.output, done.output

"""A rank that runs ahead of a slow one: bounded memory, and a cost independent of the lead."""

import pathlib

import patience
import pytest

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("run_ahead_worker.py"))


@pytest.mark.parametrize(
    "operation,early_messages",
    [
        ("bcast", 512),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("reduce", 512), ("scatter", 4), ("send", 0))
        ),
    ],
)
def test_rank_that_runs_ahead_uses_bounded_memory(operation, early_messages):
    env = {"JAXCCOMP_EARLY_MESSAGES": str(early_messages)}
    done = launch.run(
        2, [WORKER, operation, "4000"], env=env, timeout_seconds=patience.seconds(240)
    )
    assert not done.error, done.output


@pytest.mark.slow
def test_rank_far_ahead_waits_without_a_deadline_error():
    # The slow rank takes longer than the deadline for the calls started; the other rank waits.
    env = {
        "JAXCCOMP_TIMEOUT_SECONDS": "3",
        "JAXCCOMP_EARLY_MESSAGES": "100000",
        "JAXCCOMP_EARLY_BYTES": str(1 << 30),
    }
    done = launch.run(
        2, [WORKER, "reduce", "10000"], env=env, timeout_seconds=patience.seconds(240)
    )
    assert not done.error, done.output

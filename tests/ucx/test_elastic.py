"""Groups without MPI and jax.distributed: members are lost, and others join."""

import os
import signal

import patience
import pytest
from ucx import groups

SILENCE_SECONDS = patience.seconds(1)
SILENCE = {"peer_timeout_seconds": str(SILENCE_SECONDS)}
# For other load on the machine.
SLACK_SECONDS = 20


@pytest.fixture
def started():
    """A list of members, which are stopped after the test."""
    members = []
    yield members
    groups.stop(members)


def test_group_continues_after_the_coordinator_is_killed_and_admits_a_process(started):
    started += groups.start("lost_and_joined", 3, **SILENCE)
    started.append(groups.join("lost_and_joined", started[1].word("address"), **SILENCE))
    found = [member.answer() for member in started[1:]]
    assert started[0].process.wait(patience.seconds(10)) == -signal.SIGKILL
    for rank, each in enumerate(found):
        assert (each["process"], each["rank"]) == (rank + 1, rank)
        assert each["members"] == [1, 2, 3]
        assert (each["step"], each["w"]) == (5, 7.0 * 300_000)
        assert each["total"] == 3.0
        assert abs(each["coded"] - 3) < 0.1
    for each in found[:2]:
        assert "rank 0" in each["error"]
        assert each["shrunk"] == [1, 2] and each["of_two"] == 2.0


def test_paused_process_is_dropped_and_cannot_continue_alone(started):
    started += groups.start("stopped", 3, **SILENCE)
    for member in started:
        member.word("ready")
    started[2].process.send_signal(signal.SIGSTOP)
    watch = patience.Stopwatch()
    for member in started[:2]:
        member.word("total")
    assert watch.seconds() < SILENCE_SECONDS + SLACK_SECONDS
    os.kill(started[2].process.pid, signal.SIGCONT)
    alone = started[2].answer()
    for member in started[:2]:
        member.go_on()
    for each in [member.answer() for member in started[:2]]:
        assert "rank 2" in each["error"]
        assert each["total"] == 2.0
    # Either the others have reported that they dropped it, or it cannot reach them.
    assert "processes [0, 1]" in alone["cut_off"]


@pytest.mark.slow
def test_group_of_one_admits_a_second_process(started):
    started += groups.start("grows", 1, **SILENCE)
    started.append(groups.join("grows", started[0].word("address"), **SILENCE))
    for each in [member.answer() for member in started]:
        assert each == {"size": 2, "total": 2.0}


@pytest.mark.slow
def test_joiner_with_different_arrays_raises_on_all_processes(started):
    started += groups.start("other_arrays", 1, **SILENCE)
    started.append(groups.join("other_arrays", started[0].word("address"), **SILENCE))
    for each in [member.answer() for member in started]:
        assert "ranks 0 and 1" in each["error"]
        assert "float32[3]" in each["error"] and "float32[4]" in each["error"]
        assert each["total"] == 2.0  # the group is still usable


@pytest.mark.slow
def test_restarted_actor_receives_the_newest_weights(started):
    started += groups.start("actor", 3, **SILENCE)
    address = started[0].word("address")
    for member in started[1:]:
        member.word("has")
    started[2].process.kill()
    started.append(groups.join("actor", address, "sync", **SILENCE))
    assert started[3].word("has") == "3"  # published before this process started
    started[0].go_on()
    for member in (started[0], started[1], started[3]):
        assert member.answer() == {"last": 4}

"""Outer steps of a group with a late or lost member."""

import json

import patience
import pytest
from ucx import groups

GRACE_SECONDS = 0.5
SLACK_SECONDS = 30


@pytest.fixture
def started():
    """A list of members, which are stopped after the test."""
    members = []
    yield members
    groups.stop(members)


@pytest.mark.parametrize(
    ("case", "late"),
    [
        ("exact", 0),  # rank 0 decides
        pytest.param("coded", 2, marks=pytest.mark.slow),
        pytest.param("exact", 1, marks=pytest.mark.slow),
        pytest.param("sparse", 0, marks=pytest.mark.slow),
    ],
)
def test_quorum_steps_without_a_late_member_which_rejoins(started, monkeypatch, case, late):
    monkeypatch.setenv("LATE", str(late))
    started += groups.start(case, 3, worker="quorum_worker.py")
    others = [member for rank, member in enumerate(started) if rank != late]
    ranks = [rank for rank in range(3) if rank != late]
    started[late].word("late")
    second = [json.loads(member.word("second")) for member in others]
    for each in second:
        assert each["processes"] == ranks and each["count"] == 2
        assert GRACE_SECONDS / 2 < each["seconds"] < patience.seconds(SLACK_SECONDS)
    assert second[0]["bits"] == second[1]["bits"]
    started[late].go_on()
    first, third = (
        [json.loads(member.word(what)) for member in started] for what in ("first", "third")
    )
    for found, count in ((first, 1), (third, 3)):
        assert all(each["processes"] == [0, 1, 2] and each["count"] == count for each in found)
        assert len({each["bits"] for each in found}) == 1
    if case == "exact":
        # Each rank adds rank + 1 per step; the late rank's updates are not dropped.
        middle = 2 + sum(rank + 1 for rank in ranks) / 2
        assert [each["w"] for each in (first[0], second[0], third[0])] == [
            [2],
            [middle],
            [middle + 2],
        ]
    for member in started:
        assert member.answer() == {"done": True}


def test_survivors_continue_outer_steps_after_a_lost_member(started):
    started += groups.start(
        "lost", 3, worker="quorum_worker.py", peer_timeout_seconds=f"{patience.seconds(1):g}"
    )
    found = [member.answer() for member in started[:2]]
    assert found[0] == found[1]
    assert found[0]["processes"] == [0, 1]
    for member in started[:2]:
        assert "rank 2" in member.word("error")

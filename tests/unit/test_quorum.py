"""The choice of a step's participants when members are late, and errors of arguments."""

import threading
import time

import jax.numpy as jnp
import numpy as np
import patience
import pytest
from golden_errors import check_text, raises

from jaxccomp import errors, optim
from jaxccomp._elastic.agreement import Rounds
from jaxccomp._elastic.quorum import Leader

PARAMS = {"w": jnp.ones((3, 4), "float32")}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def said(done, least=3, grace=5.0, wait_for_all=False):
    return {"call": "", "done": done, "rule": [least, grace], "wait_for_all": wait_for_all}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def leader(clock):
    """The leader of four members, after their first step together."""
    found = Leader(4, clock)
    assert found({rank: said(0) for rank in range(4)}) == {
        "members": [0, 1, 2, 3],
        "up_to_date": [0, 1, 2, 3],
        "done": 0,
        "failures": 0,
    }
    return found


def test_first_step_waits_for_all_members(clock):
    leader = Leader(4, clock)
    three = {rank: said(0) for rank in range(3)}
    assert leader(three) is None
    clock.now += 1000
    assert leader(three) is None
    assert leader(three | {3: said(0)})["members"] == [0, 1, 2, 3]


def test_quorum_waits_exactly_the_grace_window(leader, clock):
    come = {2: said(1)}
    assert leader(come) is None
    clock.now = 100  # a lone member does not use up the others' time window
    come |= {0: said(1), 3: said(1)}
    assert leader(come) is None
    clock.now += 4.9
    assert leader(come) is None
    clock.now += 0.2
    decision = leader(come)
    assert decision == {"members": [0, 2, 3], "up_to_date": [0, 2, 3], "done": 1, "failures": 0}
    # The late member takes part in the next step, but is not up to date.
    decision = leader({0: said(2), 1: said(1), 2: said(2), 3: said(2)})
    assert decision["members"] == [0, 1, 2, 3]
    assert (decision["up_to_date"], decision["done"]) == ([0, 2, 3], 2)


def test_complete_group_does_not_wait_for_the_grace_window(leader):
    assert leader({rank: said(1) for rank in range(4)})["done"] == 1


def test_grace_window_restarts_after_the_quorum_is_lost(leader, clock):
    three = {rank: said(1) for rank in range(3)}
    assert leader(three) is None
    clock.now += 4
    assert leader({0: said(1), 1: said(1)}) is None  # one has lost its connection
    clock.now += 4
    assert leader(three) is None
    clock.now += 5
    assert leader(three)["members"] == [0, 1, 2]


def test_less_than_a_majority_is_no_quorum(leader, clock):
    for now in (0, 100):
        clock.now = now
        assert leader({0: said(1, least=1), 1: said(1, least=1)}) is None


def test_wait_for_all_of_one_member_delays_the_quorum(leader, clock):
    come = {rank: said(1, wait_for_all=rank == 1) for rank in range(3)}
    assert leader(come) is None
    clock.now += 100
    assert leader(come) is None
    assert leader(come | {3: said(1)})["members"] == [0, 1, 2, 3]


def test_step_after_a_failure_waits_for_all_members(leader, clock):
    # The first step failed on rank 2, and perhaps on rank 3.
    come = {0: said(1), 1: said(1), 2: said(0)}
    assert leader(come) is None
    clock.now += 100
    assert leader(come) is None
    decision = leader(come | {3: said(0)})
    assert decision == {"members": [0, 1, 2, 3], "up_to_date": [0, 1], "done": 1, "failures": 1}
    three = {rank: said(2) for rank in range(3)}
    assert leader(three) is None
    clock.now += 5
    assert leader(three)["failures"] == 1


def test_step_that_failed_on_all_members_is_repeated(leader):
    decision = leader({rank: said(0) for rank in range(4)})
    assert (decision["done"], decision["failures"]) == (0, 1)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_members_with_equal_step_counts_have_equal_states(size):
    """This holds for any late members, and if exchanges fail on all or some members."""
    random = np.random.default_rng(size)
    clock = Clock()
    leader = Leader(size, clock)
    least = size // 2 + 1
    done = [0] * size
    history = [()] * size  # the steps contained in a member's state
    steps = without_some = 0
    for _ in range(3000):
        come = np.flatnonzero(random.random(size) < random.choice([0.5, 0.9, 1.0])).tolist()
        proposals = {rank: said(done[rank], least) for rank in come}
        decision = leader(proposals)
        clock.now += 10
        decision = decision or leader(proposals)
        if decision is None:
            continue
        members, newest = decision["members"], decision["up_to_date"][0]
        assert members == come and done[newest] == decision["done"]
        assert len({history[rank] for rank in decision["up_to_date"]}) == 1
        steps += 1
        without_some += len(members) < size
        result = hash((history[newest], tuple(members), steps))
        fails = random.choice([0.0, 0.0, 0.0, 0.5, 1.0])
        for rank in members:
            if random.random() >= fails:
                done[rank], history[rank] = decision["done"] + 1, result
        for rank in range(size):
            alike = [each for each in range(size) if done[each] == done[rank]]
            assert len({history[each] for each in alike}) == 1
    assert steps > 300 and (without_some > 100 or size == 2)


def test_different_quorum_settings_raise_on_all_members(leader):
    come = {0: said(1), 1: said(1, least=4), 2: said(1), 3: said(1)}
    check_text(leader(come)["refused"], "3 members", "4 members", "5 s")


@pytest.mark.parametrize(
    "hostile",
    [None, 7, [], {}, {"done": 1}, said("1"), said(1, least="all"), said(1) | {"rule": 3}],
    ids=str,
)
def test_invalid_proposals_are_ignored(leader, clock, hostile):
    come = {0: said(1), 1: said(1), 2: hostile}
    for now in (0, 100):
        clock.now = now
        assert leader(come) is None
    assert leader(come | {2: said(1), 3: said(1)})["members"] == [0, 1, 2, 3]


def test_leader_decides_proposals_that_arrived_before_its_own():
    rounds = Rounds()
    found = {}

    def follow(member):
        found[member] = rounds.follow("steps", member, f"call {member}", lambda: False)

    threads = [threading.Thread(target=follow, args=(each,), daemon=True) for each in (1, 2)]
    threads[0].start()  # before the leader has set the decision rule
    time.sleep(0.1)
    rounds.keep("steps", lambda: lambda values: sorted(values) if len(values) == 2 else None)
    threads[1].start()
    for each in threads:
        each.join(patience.seconds(20))
    assert found == {1: [1, 2], 2: [1, 2]}
    # A member that missed the decision, because its connection ended, repeats its proposal and gets
    # it. A member that did not take part waits for the next round.
    assert rounds.follow("steps", 1, "call 1", lambda: False) == [1, 2]
    late = threading.Thread(target=follow, args=(3,), daemon=True)
    late.start()
    assert rounds.lead(
        "steps", 0, "call 0", lambda values: None, time.monotonic() + patience.seconds(20)
    ) == [0, 3]
    late.join(patience.seconds(20))
    assert found[3] == [0, 3]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (
            {"outer": "diloco"},
            ("outer", "jaxccomp.optim.diloco, local_sgd or sparse_loco", "'diloco'"),
        ),
        ({"outer": optim.diloco(axis_name="d")}, "axis_name='d'"),
        ({"fraction": 0.5}, ("fraction", "1, not 0.5")),
        ({"fraction": 1.5}, ("fraction", "0.5", "1.5")),
        ({"fraction": True}, ("fraction", "True")),
        ({"fraction": float("nan")}, ("fraction", "nan")),
        ({"grace_seconds": -1}, ("grace_seconds", "0, not -1")),
        ({"grace_seconds": float("inf")}, ("grace_seconds", "inf")),
        ({"grace_seconds": "long"}, ("grace_seconds", "'long'")),
        ({"timeout_seconds": 0}, ("timeout_seconds", "not 0")),
        ({"name": "a/b"}, ("name", "'/'", "':'", "'a/b'")),
        ({"name": ""}, ("name", "'/'", "not ''")),
    ],
)
def test_invalid_arguments_raise_errors_that_name_allowed_values(arguments, facts):
    with raises(errors.InvalidArgumentError, facts):
        optim.Quorum(**{"outer": optim.diloco()} | arguments)


def test_quorum_of_one_rank_equals_the_outer_optimizer():
    quorum = optim.Quorum(optim.diloco())
    state = quorum.init(PARAMS)
    params, state = quorum.step({"w": PARAMS["w"] - 1}, state)
    assert jnp.allclose(params["w"], 1 - 0.7 * 1.9, atol=1e-6)
    assert int(state.count) == 1 and quorum.participants == (0,)
    with raises(errors.InvalidArgumentError, "Quorum", "QuorumState", "init(params)", "OuterState"):
        quorum.step(params, state.outer)
    with raises(
        errors.InvalidArgumentError, "['w']", "float32[3, 4]", "float64[3]", "init(params)"
    ):
        quorum.step({"w": jnp.ones(3)}, state)

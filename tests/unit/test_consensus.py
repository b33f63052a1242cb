"""The consensus on a group's membership, on a simulated network and clock.

JAXCCOMP_TEST_SCHEDULES=100000 runs 100000 schedules; `python tests/unit/simulation.py --trace
--seed N` shows one of them.
"""

import importlib.util
import itertools
import os
import pathlib

import pytest
from golden_errors import check_text, raises

from jaxccomp._elastic.consensus import Membership, Node, Record, largest_group

_SPEC = importlib.util.spec_from_file_location(
    "simulation", pathlib.Path(__file__).with_name("simulation.py")
)
simulation = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(simulation)

SCHEDULES = int(os.environ.get("JAXCCOMP_TEST_SCHEDULES", "150"))
# Within this many schedules, the simulation finds every reintroduced bug.
FINDS_WITHIN = 1500


def test_random_faults_never_leave_two_groups_and_keep_a_majority_alive():
    assert list(simulation.violations(range(SCHEDULES))) == []


def test_leader_waits_for_voters_whose_connection_it_lost():
    # The old bug: until the deadline it gave up each ballot at once, although all voters answered.
    assert list(simulation.violations([511195])) == []


def test_simulation_replays_a_schedule_from_its_seed():
    def events(seed):
        lines = []
        simulation.run(seed, log=lines.append)
        return lines

    assert events(3) == events(3) != events(4)


class RefusedIsEnded(Node):
    """An old bug: a refused connection was proof of the process's end, on any host."""

    def refuse(self, process):
        super().refuse(process)
        self._ended[process] = Record(self.membership)


class DecidesAlone(Node):
    """An old bug: the leader decided without a quorum, and could die before it notified the
    others."""

    def _decide_if_accepted(self):
        return self._learn(self._value)


class AnyPart(Node):
    """An old bug: each part of a group continued, even a minority."""

    def _is_quorum(self, voters, known):
        return bool(set(voters) & set(known))


class WaitsForTheLeader(Node):
    """An old bug: members waited for a stopped leader until the deadline."""

    def _leader(self, now):
        return next(p for p in self._known if p == self.process or p not in self._lost)

    def lose(self, process):
        if process != self._leader(0):
            super().lose(process)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"node_class": RefusedIsEnded}, "two groups"),
        ({"node_class": DecidesAlone}, "two groups"),
        ({"node_class": AnyPart}, "two groups"),
        ({"node_class": WaitsForTheLeader}, "ends beside a majority|does not go on"),
        ({"believes_reports": True}, "ends beside a majority|does not go on"),
        ({"reads_records": False}, "two groups"),
    ],
    ids=lambda each: "" if isinstance(each, str) else str(next(iter(each.values()))),
)
def test_simulation_finds_a_reintroduced_fault(fault, said):
    _, text = next(simulation.violations(range(FINDS_WITHIN), **fault), (None, "nothing found"))
    assert any(part in text for part in said.split("|")), text


def cluster(size, hosts=None):
    made = simulation.Cluster(1, size=size, hosts=hosts or size)
    made.run(2.0)
    return made


def survivors(made):
    """Return the working members, and the errors of the others."""
    made.run(made.now + 30)
    groups = made.working()
    assert len(groups) == 1, groups
    ended = {p.number: p.why for p in made.processes if p.why}
    return list(groups[0].members), ended


PARTITIONS = {
    "two and two": ([(0, 2), (0, 3), (1, 2), (1, 3)], [0, 1]),
    "the first one alone": ([(0, 1), (0, 2), (0, 3)], [1, 2, 3]),
    "the last one alone": ([(3, 0), (3, 1), (3, 2)], [0, 1, 2]),
    "star around 1": ([(0, 2), (0, 3), (2, 3)], [0, 1]),
    "ring of four": ([(0, 2), (1, 3)], [0, 1]),
    "ring of four with two cuts": ([(0, 1), (2, 3)], [0, 2]),
    "two cuts at one": ([(0, 1), (0, 3)], [1, 2, 3]),
    "one cut": ([(1, 2)], [0, 1, 3]),
}


@pytest.mark.parametrize("how", ["silent", "refused", "one way", "the other way"])
@pytest.mark.parametrize("name", PARTITIONS)
def test_network_partition_leaves_one_group(name, how):
    cuts, expected = PARTITIONS[name]
    made = cluster(4)
    for one, other in cuts:
        if how == "the other way":
            one, other = other, one
        made.cut(one, other, "refused" if how == "refused" else "silent", "way" not in how)
    members, ended = survivors(made)
    if (name, how) == ("two cuts at one", "the other way"):
        expected = [0, 2]  # the leader hears only these two, a quorum
    assert len(members) == len(expected)
    assert members == expected or name in ("ring of four", "ring of four with two cuts")
    assert sorted([*members, *ended]) == [0, 1, 2, 3]
    assert all("processes [" in why or f"({n})" in why for n, why in ended.items()), ended


@pytest.mark.parametrize("believes_reports", [False, True])
def test_group_survives_if_three_of_four_processes_are_paused_and_resumed(believes_reports):
    made = cluster(4)
    made.believes_reports = believes_reports
    for number in range(3):
        made.stop(number)
    made.run(12.0)
    for number in range(3):
        made.go_on(number)
    if believes_reports:  # process 3 has lost all others, and has reported this to them
        with raises(simulation.Violation, "processes [1, 2, 3]", "processes [0]"):
            survivors(made)
        return
    members, ended = survivors(made)
    assert members == [0, 1, 2]
    check_text(ended[3], "processes [0, 1, 2]", "processes [3]")


@pytest.mark.parametrize("hosts", [1, 2])
def test_last_process_continues_only_if_the_host_confirms_the_deaths(hosts):
    """A host confirms the end of its members only if another member lives there."""
    made = cluster(4, hosts)
    for number in (0, 1, 3):
        made.kill(number)
    if hosts == 1:
        assert survivors(made)[0] == [2]
    else:
        made.run(20)
        assert made.working() == []
        check_text(made.processes[2].why, "processes [1, 3]", "processes [2]")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_survivors_continue_if_processes_are_killed_in_turn(size):
    made = cluster(size, 1)
    for number in range(size - 1):
        made.kill(number)
        assert survivors(made) == (list(range(number + 1, size)), {})


def test_largest_group_returns_a_largest_fully_connected_set():
    assert largest_group([3, 1, 2], {3: [], 1: [], 2: []}) == [3, 1, 2]
    assert largest_group([0, 1, 2, 3], {0: [1, 3], 1: [], 2: [], 3: [7]}) == [1, 2, 3]
    assert largest_group([0, 1], {0: [], 1: [0]}) == [0]  # of equal groups the first
    # Many conflicts: each pair of neighbours in a ring of 40.
    ring = range(40)
    found = largest_group(ring, {p: [(p + 1) % 40] for p in ring})
    assert len(found) >= 14
    assert not any((q - p) % 40 == 1 for p, q in itertools.permutations(found, 2))


def test_acceptance_of_an_exited_process_does_not_count_as_a_vote():
    """Its record has the accepted value, and no other value may be decided."""
    first = Membership(0, (0, 1, 2))
    decided = Membership(1, (0, 1, 9))
    records = {0: Record(first, (1, 0), ((1, 0), decided)), 1: Record(first, (1, 0))}
    node = Node(2, first, 1.0, records.get)
    node.lose(0)
    node.lose(1)
    node.begin(0.0)
    for number in range(50):
        node.tick(number / 10)
    assert node.membership == first
    check_text(node.cut_off, "(2)")

"""User-registered algorithms: invalid ones, their errors, and where algorithms are listed."""

import doctest
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import plugin

import jaxccomp as jcc
from jaxccomp import errors, schedules
from jaxccomp._native import algorithms
from jaxccomp.cli import doctor
from jaxccomp.schedules import _plans


@pytest.fixture(autouse=True)
def nothing_is_registered(monkeypatch):
    plugin.install(monkeypatch)


def bcast(b, **changes):
    """A broadcast with some tasks changed."""
    tasks = {
        "send": lambda: [b.send(peer, 0, b.input()) for peer in range(1, b.ranks)],
        "copy": lambda: b.copy(b.output(), b.input()),
        "recv": lambda: b.recv(0, 0, b.output()),
    }
    tasks |= changes
    for name in ("send", "copy") if b.rank == b.root else ("recv",):
        tasks[name]()


# The change of a broadcast, and its error.
WRONG = {
    "no receive": (
        {"recv": lambda b: None},
        r"rank 0, task 0 send input0\[0,256\) to 1 tag 0: rank 1 has no receive of that tag",
    ),
    "no send": (
        {"send": lambda b: None},
        r"rank 1, task 0 recv output0\[0,256\) from 0 tag 0: rank 0 has no send of that tag",
    ),
    "a result that is missing": (
        {"copy": lambda b: None},
        "rank 0: output0 at byte 0 is never written",
    ),
    "half a result": (
        {"copy": lambda b: b.copy(b.part(b.output(), 0, 2), b.part(b.input(), 0, 2))},
        "rank 0: output0 at byte 128 is never written",
    ),
    "an order": (
        {
            "recv": lambda b: (
                b.recv(0, 0, b.scratch(b.output())),
                b.copy(b.output(), schedules.Slot("scratch", 0, 0, 256)),
            )
        },
        r"rank 1, task 1 copy output0\[0,256\) <- scratch0\[0,256\): is not ordered after task 0",
    ),
    "lanes": (
        {
            "recv": lambda b: (
                setattr(b, "lane", 1),
                b.recv(0, 0, b.output()),
                b.copy(b.scratch(b.output()), b.input()),
            )
        },
        "rank 0, task 0 .*: its receive is in lane 1, this is lane 0",
    ),
    "a range": (
        {"copy": lambda b: b.copy(schedules.Slot("output", 0, 0, 320), b.input())},
        r"rank 0, task 1 .*outside its block, which is \[0,256\)|ranges differ in size",
    ),
    "alignment": (
        {
            "copy": lambda b: b.copy(
                schedules.Slot("output", 0, 0, 32), schedules.Slot("input", 0, 0, 32)
            )
        },
        "begins or ends inside 64 bytes",
    ),
    "an operand": ({"copy": lambda b: b.copy(b.input(), b.input())}, "writes an operand"),
    "a codec": ({"copy": lambda b: b.decode(b.output(), b.code(b.input()))}, "there is no codec"),
    "a peer": (
        {"recv": lambda b: b.recv(b.ranks, 0, b.output())},
        "rank 1 cannot exchange messages with rank 2: the others are among 0 to 1",
    ),
    "itself": ({"recv": lambda b: b.recv(b.rank, 0, b.output())}, "rank 1 cannot exchange"),
    "what comes later": (
        {"copy": lambda b: b.copy(b.output(), b.input(), after=1)},
        "copy: a task waits for those before it, which are numbered 0 to 0, not for 1",
    ),
    "no range": ({"copy": lambda b: b.copy(b.output(), "input")}, "not 'input'"),
    "a tag": ({"recv": lambda b: b.recv(0, -1, b.output())}, "tag must be in 0..4294967295"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(name):
    changes, words = WRONG[name]

    @jcc.register_algorithm("wrong", "bcast")
    def wrong(b):
        bcast(b, **{key: (lambda make=make: make(b)) for key, make in changes.items()})

    with pytest.raises(errors.ScheduleError, match=words) as caught:
        schedules.make("bcast", "wrong", rank=0, ranks=2, block_bytes=256)
    assert "bcast 'wrong' is wrong for 2 ranks, root 0, blocks of 256 bytes" in str(caught.value)


def test_a_deadlock_is_told():
    @jcc.register_algorithm("waits", "allreduce")
    def waits(b):
        other = b.scratch(b.output())
        came = b.recv(1 - b.rank, 0, other)
        b.send(1 - b.rank, 0, b.input(), after=came)

    with pytest.raises(errors.ScheduleError, match=r"task 0 recv .*never runs \(deadlock\)"):
        schedules.check("allreduce", "waits", ranks=[2], sizes=[(64, 64)])


def test_a_sum_that_forgets_a_rank_is_told():
    @jcc.register_algorithm("forgets", "allreduce")
    def forgets(b):
        b.copy(b.output(), b.input())

    with pytest.raises(errors.ScheduleError, match="of ranks 0, not of 0 1 2"):
        schedules.check("allreduce", "forgets", ranks=[3], sizes=[(64, 64)])


def test_too_much_memory_is_told():
    @jcc.register_algorithm("greedy", "bcast")
    def greedy(b):
        if b.rank == b.root:
            return bcast(b)
        whole = b.scratch(b.output())
        b.copy(b.output(), whole, b.recv(0, 0, whole))

    how = {"rank": 0, "ranks": 2, "block_bytes": 1 << 20}
    assert schedules.make("bcast", "greedy:chunk=1048576", **how).algorithm == "greedy"
    with pytest.raises(errors.ScheduleError, match="holds 1048576 bytes .* 16384 are granted"):
        schedules.make("bcast", "greedy:chunk=4096", **how)


def test_an_exception_in_the_function_is_its_own():
    @jcc.register_algorithm("raises", "bcast")
    def raises(b):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        schedules.check("bcast", "raises", ranks=[2])
    assert "in schedule 'raises' of bcast, for rank 0 of 2 ranks" in caught.value.__notes__[0]


def test_names_and_options():
    with pytest.raises(errors.UnknownNameError, match="unknown collective"):
        jcc.register_algorithm("mine", "broadcast")
    with pytest.raises(errors.NameTakenError, match="a name is of a-z"):
        jcc.register_algorithm("My own", "bcast")(bcast)
    with pytest.raises(errors.ScheduleError, match="must have a number or a bool"):
        jcc.register_algorithm("mine", "bcast", way="left")
    with pytest.raises(errors.ScheduleError, match="another name than chunk"):
        jcc.register_algorithm("mine", "bcast", chunk=3)
    with pytest.raises(errors.NameTakenError, match="this package has one of that name"):
        jcc.register_algorithm("chain", "bcast")(bcast)
    with pytest.raises(errors.ScheduleError, match="does not take them"):
        jcc.register_algorithm("mine", "bcast", width=2)(lambda b: None)
    jcc.register_algorithm("chain", "allreduce")(bcast)  # this name belongs to another collective
    jcc.register_algorithm("mine", "bcast", width=2, fast=False)(lambda b, width, fast: bcast(b))
    for algorithm, words in {
        "mine:": "an option must follow the colon",
        "mine:chunk=1": "chunk is a number of bytes from 64, not '1'",
        "mine:with=3": "there is no option 'with'; it has 'chunk', 'width', 'fast'",
        "mine:width=wide": "must be of type int, such as 2",
        "mine:fast=3": "must be of type bool, such as False",
    }.items():
        with pytest.raises(errors.InvalidArgumentError, match=words):
            jcc.bcast(jnp.ones(3), root=0, algorithm=algorithm)


def test_a_name_of_another_source_is_taken():
    jcc.register_algorithm("mine", "bcast")(bcast)
    jcc.register_algorithm("mine", "bcast")(bcast)  # the same function again
    with pytest.raises(errors.NameTakenError, match="bcast has registered one of that name"):
        jcc.register_algorithm("mine", "bcast")(lambda b: bcast(b))


def test_a_function_that_is_defined_again_counts():
    def define(with_copy):
        @jcc.register_algorithm("again", "bcast")
        def again(b):
            if with_copy:
                b.copy(b.output(), b.input())

    step = jax.jit(lambda x: jcc.bcast(x, root=0, algorithm="again"))
    define(True)
    np.testing.assert_array_equal(step(jnp.arange(3)), jnp.arange(3))
    define(False)
    with pytest.raises(errors.ScheduleError, match="never written"):
        step(jnp.arange(3))


def test_those_of_other_packages_are_found_and_are_right():
    x = jnp.arange(100.0)
    np.testing.assert_array_equal(jcc.bcast(x, root=0, algorithm="plugin_line:skip=3"), x)
    assert schedules.check("bcast", "plugin_line") > 200
    assert schedules.check("allreduce", "plugin_sum", ranks=(1, 2, 3, 5)) > 50
    assert schedules.check("alltoall", "plugin_pairs", ranks=(1, 2, 3), sizes=[(1000, 4096)]) > 5
    assert schedules.check("bcast", "plugin_grouped") > 200
    with pytest.raises(errors.InvalidArgumentError, match="of this package's own"):
        schedules.check("bcast", "chain")


def test_an_import_that_fails_is_told_and_stops_nothing():
    with pytest.raises(errors.UnknownNameError) as caught:
        jcc.bcast(jnp.ones(3), root=0, algorithm="plugin_lime")
    assert "Did you mean 'plugin_line'?" in str(caught.value)
    assert (
        "The package jaxccomp-plugin 1.0 could not be asked: its entry point 'broken' in "
        "'jaxccomp.algorithms' failed with RuntimeError: this module is broken."
        in str(caught.value)
    )
    shown = doctor.examine()
    assert "plugin_gathering" in {each["name"] for each in shown["backends"]}
    assert "plugin_half" in {each["name"] for each in shown["codecs"]}
    assert {"chain", "plugin_line", "plugin_grouped"} < set(shown["collectives"]["bcast"])
    assert {"error": "RuntimeError: this module is broken", "value": "jaxccomp_plugin.broken"} in [
        {name: each[name] for name in ("error", "value")} for each in shown["entry_points"]
    ]
    (finding,) = (each for each in shown["findings"] if each["name"] == "jaxccomp-plugin 1.0")
    assert finding["severity"] == "error" and "jaxccomp_plugin.broken" in finding["problem"]


def test_codecs_of_other_packages_are_found():
    assert jcc.codecs.canonical("plugin_half") == "plugin_half"
    with pytest.raises(errors.UnknownNameError, match="'plugin_half'"):
        jcc.codecs.canonical("plugin_third")


def test_simulate_prices_them():
    how = {"cluster": "4x1gbit", "size_bytes": 8 << 20}
    own = schedules.simulate("bcast", "chain", **how)
    registered = schedules.simulate("bcast", "plugin_line:chunk=524288", **how)
    assert registered.algorithm == "plugin_line"
    assert registered.seconds == own.seconds
    assert registered.up_bytes == own.up_bytes
    rows, missing = schedules.simulate_all("bcast", **how)
    assert "plugin_line" in {row.algorithm for row in rows} and not missing


def test_auto_takes_none_of_them():
    link = {"up_bytes_per_second": 1.2e8, "down_bytes_per_second": 1.2e8}
    hosts = [{"count": 4, "ranks": 1, "cores": 8, **link}]
    profile = json.dumps({"version": 1, "hosts": hosts, "codecs": {}}).encode()
    planner = schedules.Planner(schedules.parse_profile(profile, "here"), [0, 1, 2, 3])
    how = {"sizes": (("float32", 8 << 20),), "groups": ((0, 1, 2, 3),), "every_option": True}
    choice = planner.choose("bcast", **how)
    assert "plugin_line" not in {each.runs for each in (choice.chosen, *choice.others)}
    asked = planner.choose("bcast", algorithm="plugin_line", **how)
    assert asked.chosen.runs == "plugin_line"


def test_explain_shows_the_name():
    (call,) = jcc.explain(lambda x: jcc.bcast(x, root=0, algorithm="plugin_line:chunk=4096"))(
        jnp.ones(1000)
    ).calls
    assert (call.mover, call.algorithm) == ("native", "plugin_line:chunk=4096")


def test_plans_pin_them(tmp_path):
    asked = jcc.explain(lambda x: jcc.bcast(x, root=0, algorithm="plugin_line:chunk=4096"))
    asked(jnp.ones(1000)).plans.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    (row,) = content["calls"]
    assert row["plan"]["algorithm"] == "plugin_line:chunk=4096"
    _plans.parse(json.dumps(content).encode(), "the file")
    row["algorithm"], row["plan"]["algorithm"] = "auto", "plugin_line:skip=2"
    _plans.parse(json.dumps(content).encode(), "the file")
    row["plan"]["algorithm"] = "plugin_lime"
    with pytest.raises(errors.InvalidArgumentError, match="bcast has no algorithm 'plugin_lime'"):
        _plans.parse(json.dumps(content).encode(), "the file")


def test_shapes_must_be_known():
    (n,) = jax.export.symbolic_shape("n")
    check = jax.export.DisabledSafetyCheck.custom_call("jaxccomp_collective")
    step = jax.jit(lambda x: jcc.bcast(x, root=0, algorithm="plugin_line"))
    with pytest.raises(errors.ScheduleError, match="made for shapes that are known"):
        jax.export.export(step, disabled_checks=[check])(jax.ShapeDtypeStruct((n,), jnp.float32))


def test_schedules_are_made_once(monkeypatch):
    made = []

    @jcc.register_algorithm("counted", "bcast")
    def counted(b):
        made.append(b.rank)
        bcast(b)

    problem = algorithms.Problem(3, 4096)
    keys = {algorithms.for_engine("bcast", "counted", problem) for _ in range(3)}
    assert made == [0, 1, 2]
    assert len(keys) == 1 and keys.pop().startswith("counted#")
    other = algorithms.for_engine("bcast", "counted", algorithms.Problem(3, 8192))
    assert made == [0, 1, 2] * 2 and other.startswith("counted#")


def test_examples_in_docstrings():
    for shown in (jcc.register_algorithm, schedules.check):
        for found in doctest.DocTestFinder().find(shown, globs={"jaxccomp": jcc}):
            flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
            assert doctest.DocTestRunner(optionflags=flags).run(found).failed == 0

"""User-registered algorithms: invalid ones, their errors, and where algorithms are listed."""

import doctest
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import plugin
from golden_errors import check_text, raises

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
        ("rank 0, task 0 send input0[0,256) to 1 tag 0", "rank 1"),
    ),
    "no send": (
        {"send": lambda b: None},
        ("rank 1, task 0 recv output0[0,256) from 0 tag 0", "rank 0"),
    ),
    "a result that is missing": (
        {"copy": lambda b: None},
        "rank 0: output0 at byte 0",
    ),
    "half a result": (
        {"copy": lambda b: b.copy(b.part(b.output(), 0, 2), b.part(b.input(), 0, 2))},
        "rank 0: output0 at byte 128",
    ),
    "an order": (
        {
            "recv": lambda b: (
                b.recv(0, 0, b.scratch(b.output())),
                b.copy(b.output(), schedules.Slot("scratch", 0, 0, 256)),
            )
        },
        (
            "rank 1, task 1 copy output0[0,256) <- scratch0[0,256)",
            "task 0 recv scratch0[0,256) from 0 tag 0",
        ),
    ),
    "lanes": (
        {
            "recv": lambda b: (
                setattr(b, "lane", 1),
                b.recv(0, 0, b.output()),
                b.copy(b.scratch(b.output()), b.input()),
            )
        },
        ("rank 0, task 0 send input0[0,256) to 1 tag 0", "lane 1", "lane 0"),
    ),
    "a range": (
        {"copy": lambda b: b.copy(schedules.Slot("output", 0, 0, 320), b.input())},
        "rank 0, task 1 copy output0[0,320) <- input0[0,256)",
    ),
    "alignment": (
        {
            "copy": lambda b: b.copy(
                schedules.Slot("output", 0, 0, 32), schedules.Slot("input", 0, 0, 32)
            )
        },
        ("rank 0, task 1 copy output0[0,32) <- input0[0,32)", "64 bytes"),
    ),
    "an operand": (
        {"copy": lambda b: b.copy(b.input(), b.input())},
        ("rank 0, task 1 copy input0[0,256) <- input0[0,256)", "operand"),
    ),
    "a codec": (
        {"copy": lambda b: b.decode(b.output(), b.code(b.input()))},
        ("rank 0, task 1 decode output0[0,256) <- code0[0,256)", "codec"),
    ),
    "a peer": (
        {"recv": lambda b: b.recv(b.ranks, 0, b.output())},
        ("rank 1", "rank 2", "0 to 1"),
    ),
    "itself": ({"recv": lambda b: b.recv(b.rank, 0, b.output())}, ("rank 1", "0 to 1")),
    "what comes later": (
        {"copy": lambda b: b.copy(b.output(), b.input(), after=1)},
        ("copy", "0 to 0", "1"),
    ),
    "no range": (
        {"copy": lambda b: b.copy(b.output(), "input")},
        ("jaxccomp.schedules.Slot", "'input'", "'residual'"),
    ),
    "a tag": ({"recv": lambda b: b.recv(0, -1, b.output())}, ("tag", "0..4294967295", "-1")),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_schedules_raise_errors_that_name_rank_and_task(name):
    changes, facts = WRONG[name]

    @jcc.register_algorithm("wrong", "bcast")
    def wrong(b):
        bcast(b, **{key: (lambda make=make: make(b)) for key, make in changes.items()})

    with raises(errors.ScheduleError, "bcast 'wrong'", "2 ranks", "root 0", "256 bytes", facts):
        schedules.make("bcast", "wrong", rank=0, ranks=2, block_bytes=256)


def test_check_reports_a_deadlock():
    @jcc.register_algorithm("waits", "allreduce")
    def waits(b):
        other = b.scratch(b.output())
        came = b.recv(1 - b.rank, 0, other)
        b.send(1 - b.rank, 0, b.input(), after=came)

    with raises(
        errors.ScheduleError, "rank 0, task 0 recv scratch0[0,64) from 1 tag 0", "deadlock"
    ):
        schedules.check("allreduce", "waits", ranks=[2], sizes=[(64, 64)])


def test_check_reports_ranks_that_a_sum_omits():
    @jcc.register_algorithm("forgets", "allreduce")
    def forgets(b):
        b.copy(b.output(), b.input())

    with raises(
        errors.ScheduleError, "allreduce 'forgets'", "rank 0: output0 at byte 0", "ranks 0", "0 1 2"
    ):
        schedules.check("allreduce", "forgets", ranks=[3], sizes=[(64, 64)])


def test_scratch_memory_above_the_limit_raises():
    @jcc.register_algorithm("greedy", "bcast")
    def greedy(b):
        if b.rank == b.root:
            return bcast(b)
        whole = b.scratch(b.output())
        b.copy(b.output(), whole, b.recv(0, 0, whole))

    how = {"rank": 0, "ranks": 2, "block_bytes": 1 << 20}
    assert schedules.make("bcast", "greedy:chunk=1048576", **how).algorithm == "greedy"
    with raises(errors.ScheduleError, "1048576 bytes of scratch", "16384", "4 chunks", "rank 1"):
        schedules.make("bcast", "greedy:chunk=4096", **how)


def test_exceptions_of_the_users_function_propagate_unchanged():
    @jcc.register_algorithm("raises", "bcast")
    def fails(b):
        raise KeyError("mine")

    with raises(KeyError, "'mine'") as caught:
        schedules.check("bcast", "raises", ranks=[2])
    check_text(caught.value.__notes__[0], "'raises'", "bcast", "rank 0", "2 ranks")


def test_register_refuses_invalid_names_and_options():
    with raises(errors.UnknownNameError, "'broadcast'", "'allgather'", "'bcast'"):
        jcc.register_algorithm("mine", "broadcast")
    with raises(errors.NameTakenError, "'My own'", "a-z"):
        jcc.register_algorithm("My own", "bcast")(bcast)
    with raises(errors.ScheduleError, "'mine'", "way='left'", "number", "bool"):
        jcc.register_algorithm("mine", "bcast", way="left")
    with raises(errors.ScheduleError, "'mine'", "chunk=3", "another name than chunk"):
        jcc.register_algorithm("mine", "bcast", chunk=3)
    with raises(errors.NameTakenError, "bcast 'chain'", "this package"):
        jcc.register_algorithm("chain", "bcast")(bcast)
    with raises(errors.ScheduleError, "'mine'", "'width'"):
        jcc.register_algorithm("mine", "bcast", width=2)(lambda b: None)
    jcc.register_algorithm("chain", "allreduce")(bcast)  # this name belongs to another collective
    jcc.register_algorithm("mine", "bcast", width=2, fast=False)(lambda b, width, fast: bcast(b))
    for algorithm, facts in {
        "mine:": ("bcast", "'mine:'", "option", "chunk=131072"),
        "mine:chunk=1": ("'mine:chunk=1'", "64", "'1'"),
        "mine:with=3": ("'mine:with=3'", "'with'", "'chunk', 'width', 'fast'"),
        "mine:width=wide": ("width=wide", "int", "2"),
        "mine:fast=3": ("fast=3", "bool", "False"),
    }.items():
        with raises(errors.InvalidArgumentError, facts):
            jcc.bcast(jnp.ones(3), root=0, algorithm=algorithm)


def test_algorithm_name_registered_elsewhere_raises_name_taken_error():
    jcc.register_algorithm("mine", "bcast")(bcast)
    jcc.register_algorithm("mine", "bcast")(bcast)  # the same function again
    with raises(errors.NameTakenError, "bcast 'mine'", "test_custom_schedules.bcast"):
        jcc.register_algorithm("mine", "bcast")(lambda b: bcast(b))


def test_redefined_function_replaces_the_registered_algorithm():
    def define(with_copy):
        @jcc.register_algorithm("again", "bcast")
        def again(b):
            if with_copy:
                b.copy(b.output(), b.input())

    step = jax.jit(lambda x: jcc.bcast(x, root=0, algorithm="again"))
    define(True)
    np.testing.assert_array_equal(step(jnp.arange(3)), jnp.arange(3))
    define(False)
    with raises(errors.ScheduleError, "bcast 'again'", "rank 0: output0 at byte 0"):
        step(jnp.arange(3))


def test_algorithms_of_plugins_are_found_and_pass_the_check():
    x = jnp.arange(100.0)
    np.testing.assert_array_equal(jcc.bcast(x, root=0, algorithm="plugin_line:skip=3"), x)
    assert schedules.check("bcast", "plugin_line") > 200
    assert schedules.check("allreduce", "plugin_sum", ranks=(1, 2, 3, 5)) > 50
    assert schedules.check("alltoall", "plugin_pairs", ranks=(1, 2, 3), sizes=[(1000, 4096)]) > 5
    assert schedules.check("bcast", "plugin_grouped") > 200
    with raises(errors.InvalidArgumentError, "bcast 'chain'"):
        schedules.check("bcast", "chain")


def test_failed_plugin_import_is_reported_and_other_plugins_load():
    with raises(
        errors.UnknownNameError,
        *("'plugin_lime'", "'plugin_line'", "jaxccomp-plugin 1.0", "'broken'"),
        *("'jaxccomp.algorithms'", "RuntimeError: this module is broken"),
    ):
        jcc.bcast(jnp.ones(3), root=0, algorithm="plugin_lime")
    shown = doctor.examine()
    assert "plugin_gathering" in {each["name"] for each in shown["backends"]}
    assert "plugin_half" in {each["name"] for each in shown["codecs"]}
    assert {"chain", "plugin_line", "plugin_grouped"} < set(shown["collectives"]["bcast"])
    assert {"error": "RuntimeError: this module is broken", "value": "jaxccomp_plugin.broken"} in [
        {name: each[name] for name in ("error", "value")} for each in shown["entry_points"]
    ]
    (finding,) = (each for each in shown["findings"] if each["name"] == "jaxccomp-plugin 1.0")
    assert finding["severity"] == "error" and "jaxccomp_plugin.broken" in finding["problem"]


def test_codecs_of_plugins_are_found():
    assert jcc.codecs.canonical("plugin_half") == "plugin_half"
    with raises(errors.UnknownNameError, "'plugin_third'", "'plugin_half'"):
        jcc.codecs.canonical("plugin_third")


def test_simulate_predicts_the_cost_of_registered_algorithms():
    how = {"cluster": "4x1gbit", "size_bytes": 8 << 20}
    own = schedules.simulate("bcast", "chain", **how)
    registered = schedules.simulate("bcast", "plugin_line:chunk=524288", **how)
    assert registered.algorithm == "plugin_line"
    assert registered.seconds == own.seconds
    assert registered.up_bytes == own.up_bytes
    rows, missing = schedules.simulate_all("bcast", **how)
    assert "plugin_line" in {row.algorithm for row in rows} and not missing


def test_auto_never_selects_registered_algorithms():
    link = {"up_bytes_per_second": 1.2e8, "down_bytes_per_second": 1.2e8}
    hosts = [{"count": 4, "ranks": 1, "cores": 8, **link}]
    profile = json.dumps({"version": 1, "hosts": hosts, "codecs": {}}).encode()
    planner = schedules.Planner(schedules.parse_profile(profile, "here"), [0, 1, 2, 3])
    how = {"sizes": (("float32", 8 << 20),), "groups": ((0, 1, 2, 3),), "every_option": True}
    choice = planner.choose("bcast", **how)
    assert "plugin_line" not in {each.runs for each in (choice.chosen, *choice.others)}
    asked = planner.choose("bcast", algorithm="plugin_line", **how)
    assert asked.chosen.runs == "plugin_line"


def test_explain_shows_the_name_of_a_registered_algorithm():
    (call,) = jcc.explain(lambda x: jcc.bcast(x, root=0, algorithm="plugin_line:chunk=4096"))(
        jnp.ones(1000)
    ).calls
    assert (call.backend, call.algorithm) == ("native", "plugin_line:chunk=4096")


def test_plans_pin_registered_algorithms(tmp_path):
    asked = jcc.explain(lambda x: jcc.bcast(x, root=0, algorithm="plugin_line:chunk=4096"))
    asked(jnp.ones(1000)).plans.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    (row,) = content["calls"]
    assert row["plan"]["algorithm"] == "plugin_line:chunk=4096"
    _plans.parse(json.dumps(content).encode(), "the file")
    row["algorithm"], row["plan"]["algorithm"] = "auto", "plugin_line:skip=2"
    _plans.parse(json.dumps(content).encode(), "the file")
    row["plan"]["algorithm"] = "plugin_lime"
    with raises(
        errors.InvalidArgumentError,
        "calls[0]",
        "bcast",
        "'plugin_lime'",
        "python -m jaxccomp doctor",
    ):
        _plans.parse(json.dumps(content).encode(), "the file")


def test_symbolic_shapes_are_refused():
    (n,) = jax.export.symbolic_shape("n")
    check = jax.export.DisabledSafetyCheck.custom_call("jaxccomp_collective")
    step = jax.jit(lambda x: jcc.bcast(x, root=0, algorithm="plugin_line"))
    with raises(
        errors.ScheduleError, "bcast", "algorithm='plugin_line'", "(n,)", 'algorithm="auto"'
    ):
        jax.export.export(step, disabled_checks=[check])(jax.ShapeDtypeStruct((n,), jnp.float32))


def test_each_schedule_is_built_once(monkeypatch):
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


def test_docstring_examples_of_custom_schedules_run():
    for shown in (jcc.register_algorithm, schedules.check):
        for found in doctest.DocTestFinder().find(shown, globs={"jaxccomp": jcc}):
            flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
            assert doctest.DocTestRunner(optionflags=flags).run(found).failed == 0

"""Plans as files, agreement between ranks, and differences between two plans."""

import copy
import doctest
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest
from contract import agreeing
from golden_errors import check_text, raises

import jaxccomp as jcc
from jaxccomp import comm, config, errors, plan, schedules
from jaxccomp._runtime import shared_files
from jaxccomp._runtime.peer_info import Row
from jaxccomp.cli import main
from jaxccomp.schedules import _plans

CALL = {
    "collective": "allreduce",
    "reduce_op": "sum",
    "root": -1,
    "ranks": 4,
    "members": "hosts 0*2 1*2",
    "operands": "float32[1000]",
    "details": "",
    "platform": "cpu",
    "backend": "auto",
    "algorithm": "auto",
    "codec": "auto",
}
PLAN = {"backend": "native", "algorithm": "ring:chunk=65536", "codec": "lossless"}


def content(*calls, **changes):
    rows = [CALL | {"lines": ["train.py:4"], "plan": PLAN} | each for each in calls or ({},)]
    head = {"version": 1, "jaxccomp": "0.1.0", "world": [2, 2], "missing": "error"}
    return head | {"calls": rows} | changes


def parsed(*calls, **changes):
    return _plans.parse(json.dumps(content(*calls, **changes)).encode(), "the file")


def site(**changes):
    return CALL | changes


# --- files -----------------------------------------------------------------------------------


def test_saved_plan_loads_unchanged(tmp_path):
    path = tmp_path / "plan.json"
    made = parsed({}, {"operands": "int8[3]", "plan": PLAN | {"codec": "raw"}})
    made.save(path)
    assert plan.load(path) == made and not plan.diff(path, made)
    assert plan.load(path).lines == made.lines
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]
    with raises(errors.InvalidArgumentError, "plan.json"):
        made.save(tmp_path / "none" / "plan.json")


def test_load_refuses_every_truncated_plan_file():
    data = json.dumps(content()).encode()
    for end in range(len(data)):
        with raises(errors.InvalidArgumentError, "the file", golden=False):
            _plans.parse(data[:end], "the file")


def without(name):
    def change(made):
        del made["calls"][0][name]

    return change


def putting(name, value):
    def change(made):
        made["calls"][0][name] = value

    return change


def planning(**changes):
    return putting("plan", PLAN | changes)


@pytest.mark.parametrize(
    "change,facts",
    [
        (lambda made: made.update(version=2), ("version 2", "version 1", "jaxccomp.plan.record()")),
        (lambda made: made.update(version=[1] * 99), ("version [1, 1", "version 1")),
        (lambda made: made.update(world=[]), ("world", "[2, 2]")),
        (lambda made: made.update(world=[True, 2]), ("world", "[2, 2]")),
        (lambda made: made.update(world=[10**400]), ("world", "[2, 2]")),
        (lambda made: made.update(missing="ignore"), ("'ignore'", "missing", "'auto', 'error'")),
        (lambda made: made.update(missing=[]), ("missing", "'[]'", "'auto', 'error'")),
        (lambda made: made.update(calls={}), ("calls", "4096")),
        (lambda made: made.update(calls=made["calls"] * 5000), ("calls", "4096")),
        (
            lambda made: made.update(calls=made["calls"] * 2),
            ("calls[1]", "allreduce of float32[1000]"),
        ),
        (lambda made: made.update(others=1), ("'others'", "'calls'", "'world'")),
        (lambda made: made.pop("world"), "'world'"),
        (without("operands"), ("calls[0]", "'operands'")),
        (putting("ranks", 0), ("calls[0]", "ranks", "1 to 1048576", "not 0")),
        (putting("ranks", 4.0), ("calls[0]", "ranks", "4.0")),
        (putting("root", 10**99), ("calls[0]", "root", "-1 to 8191")),
        (putting("operands", "x" * 2000), ("calls[0]", "operands", "1000")),
        (putting("operands", None), ("calls[0]", "operands", "None")),
        (putting("lines", ["a"] * 9), ("calls[0]", "lines", "8")),
        (putting("lines", [3]), ("calls[0]", "lines", "0", "1000", "3")),
        (putting("plan", 3), ("calls[0]", "plan", "'backend', 'algorithm', 'codec'", "int")),
        (planning(backend="gloo"), ("calls[0]", "'gloo'", "'mpi', 'native', 'xla'")),
        (planning(backend="mpi"), ("calls[0]", "backend='auto'", "'native', 'xla'", "'mpi'")),
        (
            planning(algorithm="rings"),
            ("calls[0]", "allreduce", "'rings'", "python -m jaxccomp doctor"),
        ),
        (planning(algorithm="ring:chunk=0"), ("allreduce", "'ring:chunk=0'")),
        (putting("collective", "allreduces"), ("allreduces", "'ring:chunk=65536'")),
        (putting("algorithm", "two_shot"), ("algorithm='two_shot'", "'ring:chunk=65536'")),
    ],
)
def test_invalid_content_raises_an_error_that_names_the_key(change, facts):
    made = copy.deepcopy(content())
    change(made)
    with raises(errors.InvalidArgumentError, facts):
        _plans.parse(json.dumps(made).encode(), "the file")


def test_load_refuses_empty_oversized_and_missing_files(tmp_path):
    path = tmp_path / "plan.json"
    for data, facts in (
        (b"", ("plan.json", "no bytes", "jaxccomp.plan.record()")),
        (b" " * (1 << 20), ("plan.json", "262144 bytes")),
    ):
        path.write_bytes(data)
        with raises(errors.InvalidArgumentError, facts):
            plan.load(path)
    with raises(errors.InvalidArgumentError, "none.json", "jaxccomp.plan.record()"):
        plan.load(tmp_path / "none.json")
    many = plan.Plans((1,))
    for n in range(2000):
        call = plan.PlannedCall.of(site(operands=f"float32[{n}]"))
        many.add(call, plan.Plan(**PLAN), "train.py:4")
    with raises(errors.InvalidArgumentError, "2000 calls", "262144", '"missing": "auto"'):
        many.save(path)


# --- calls -----------------------------------------------------------------------------------


def test_missing_call_is_named_with_the_most_similar_calls():
    made = parsed({}, {"operands": "float32[7]"})
    assert made.find(site(), "a.py:1") == plan.Plan(**PLAN)
    for changes, facts in (
        ({"operands": "float32[8]"}, ("allreduce of float32[8]", "a.py:1", "float32[1000]")),
        ({"collective": "bcast"}, ("bcast of float32[1000]", "no bcast")),
        (
            {"codec": "raw"},
            (
                "allreduce of float32[1000]",
                "jaxccomp.explain(fn)",
                "jaxccomp.plan.record()",
                "missing",
            ),
        ),
    ):
        with raises(errors.InvalidArgumentError, facts):
            made.find(site(**changes), "a.py:1")
    assert parsed(missing="auto").find(site(ranks=3), "a.py:1") is None


def test_operands_of_long_trees_differ_by_a_digest():
    shapes = [", ".join(f"float32[{n}]" for n in range(i, i + 500)) for i in (0, 1)]
    first, second = (plan.PlannedCall.of(site(operands=each)) for each in shapes)
    assert first != second and len(first.operands) < 200
    assert first.operands.startswith("float32[0], float32[1]")


def test_conflicting_plans_of_one_call_are_refused():
    made = parsed()
    call = plan.PlannedCall.of(site())
    made.add(call, plan.Plan(**PLAN), "b.py:1")
    assert made.lines[call] == ("train.py:4", "b.py:1")
    with raises(
        errors.InvalidArgumentError,
        "allreduce of float32[1000]",
        "c.py:",
        "train.py:4",
        "b.py:1",
        "ring:chunk=65536",
        "ring:chunk=1024",
    ):
        made.add(call, plan.Plan("native", "ring:chunk=1024", "raw"), "c.py:1")


# --- differences -----------------------------------------------------------------------------


def test_diff_lists_changed_added_and_removed_calls(tmp_path, capsys):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    parsed({}, {"operands": "int8[3]"}).save(old)
    changed = {"plan": PLAN | {"codec": "raw", "algorithm": "two_shot:chunk=65536"}}
    parsed(changed, {"operands": "int8[4]"}, world=[4]).save(new)
    found = plan.diff(old, new)
    assert [(d.before is None, d.after is None) for d in found.calls] == [
        (False, False),
        (False, True),
        (True, False),
    ]
    assert main.main(["plan", "diff", str(old), str(new)]) == 1
    lines = capsys.readouterr().out.splitlines()
    check_text(lines[0], "! world", "2 hosts (2, 2)", "1 hosts (4)")
    check_text(
        lines[1],
        *("! train.py:4", "allreduce of float32[1000]"),
        *("ring:chunk=65536 -> two_shot:chunk=65536", "lossless -> raw"),
    )
    assert lines[2].startswith("- ") and "int8[3]" in lines[2]
    assert lines[3].startswith("+ ") and "int8[4]" in lines[3]
    assert main.main(["plan", "diff", str(old), str(old)]) == 0
    assert capsys.readouterr().out == ""
    assert main.main(["plan", "diff", str(old), str(tmp_path / "none")]) == 2
    check_text(capsys.readouterr().err, tmp_path / "none")


# --- programs --------------------------------------------------------------------------------


@pytest.fixture
def pin(monkeypatch):
    comm.init()

    def pinned(made):
        monkeypatch.setattr(comm._state, "plans", made)
        jax.clear_caches()

    yield pinned
    jax.clear_caches()


def step(x):
    return jcc.bcast(jcc.allreduce(x, codec="auto"), root=0)


def test_a_program_is_recorded_once_for_each_kind_of_call():
    x = jnp.ones(100, jnp.float32)
    with plan.record() as plans:
        jax.jit(lambda x: step(step(x))).lower(x)
        assert not plans.calls  # until the block ends
        inner = jcc.explain(step)(x).plans
    assert plans == inner and plans.world == (1,)
    assert [call.collective for call in plans.calls] == ["allreduce", "bcast"]
    assert all(len(lines) == 1 for lines in plans.lines.values())
    for each in plans.calls.values():
        assert each.backend == "native" and each.algorithm.endswith(":chunk=524288")
        assert not each.algorithm.startswith("auto")
    assert len(str(plans).splitlines()) == 2


def test_calls_with_a_single_implementation_have_no_plan():
    assert not jcc.explain(lambda x: jcc.sendrecv(x, dest=0, source=0))(jnp.ones(3)).plans.calls
    assert not jcc.explain(lambda x: jcc.barrier())(jnp.ones(3)).plans.calls


def test_calls_use_the_pinned_algorithm_and_codec(pin):
    x = jnp.ones(100, jnp.float32)
    made = jcc.explain(step)(x).plans
    (call, _) = made.calls
    made.calls[call] = plan.Plan("native", "ring:chunk=4096", "lossless")
    pin(made)
    text = jax.jit(step).lower(x).as_text()
    assert 'algorithm = "ring:chunk=4096"' in text and 'codec = "lossless"' in text
    assert jnp.array_equal(jax.jit(step)(x), x)
    assert jcc.explain(step)(x).plans == made  # the recorded plan equals the pinned one
    with raises(errors.InvalidArgumentError, "allreduce of float32[99]", "test_pinned_plans.py:"):
        jax.jit(step).lower(x[:99])
    made.missing = "auto"
    jax.jit(step).lower(x[:99])


def test_pinned_codec_must_be_allowed_by_the_program(pin):
    x = jnp.ones(100, jnp.float32)
    made = jcc.explain(step)(x).plans
    (call, _) = made.calls
    made.calls[call] = plan.Plan("native", "ring", "int8")
    pin(made)
    with raises(
        errors.InvalidArgumentError,
        "allreduce",
        "test_pinned_plans.py:",
        "'int8'",
        "'raw', 'lossless'",
        "codec=",
    ):
        jax.jit(step).lower(x)


# --- agreement -------------------------------------------------------------------------------


def meet(owns, hosts):
    """Returns the result of each rank, or the text of its error."""
    rows = [
        Row(0, 1, 0, 0, 0)._replace(plan=size, plan_hash=number)
        for size, number in (each.row() for each in owns)
    ]
    return agreeing.on_ranks(
        len(owns), lambda rank, share: shared_files.agree_on_plans(share, rows, owns[rank], hosts)
    )


def own(*calls, **changes):
    return shared_files.Own(json.dumps(content(*calls, **changes)).encode())


def test_all_ranks_use_the_plan_of_rank_0():
    none = shared_files.Own()
    assert meet([none, none], [0, 1]) == [None, None]
    here = own(world=[1, 1])
    for others in (none, here):
        assert meet([here, others], [0, 1]) == [parsed(world=[1, 1])] * 2


@pytest.mark.parametrize(
    "owns,facts",
    [
        ([own(world=[1, 1]), own(world=[1, 1], missing="auto")], "ranks [1]"),
        ([shared_files.Own(), own(world=[1, 1])], ("ranks [1]", "rank 0")),
        ([own(), own()], ("4 processes on 2 hosts (2, 2)", "2")),
        ([own(version=3)] * 2, ("version 3", "version 1")),
        ([shared_files.Own(b"{" * 9)] * 2, "JSON"),
        ([own({"plan": PLAN | {"codec": "int9"}}, world=[1, 1])] * 2, "int9"),
    ],
)
def test_mismatched_plans_are_refused_on_all_ranks(owns, facts):
    for said in meet(owns, [0, 1]):
        check_text(said, facts)


def test_missing_plan_file_is_reported_on_all_ranks(tmp_path):
    with config.override(plan=str(tmp_path / "none.json")):
        lost = shared_files.own_plans()
        with raises(errors.EngineUnavailableError, "option plan", "none.json", "but why"):
            shared_files.refuse_plans("why")
    first, second = meet([own(world=[1, 1]), lost], [0, 1])
    check_text(first, "ranks [1]")
    check_text(second, "none.json")


@pytest.mark.parametrize("name", ["plan", "static_rule", "with_chunk"])
def test_docstring_examples_of_plans_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = plan if name == "plan" else getattr(schedules, name)
    found = doctest.DocTestFinder(recurse=name == "plan").find(shown, globs={"jaxccomp": jcc})
    runner = doctest.DocTestRunner()
    for each in found:
        runner.run(each)
    assert runner.tries and not runner.failures


def test_programs_of_the_planner_page_run(tmp_path, monkeypatch, capsys):
    """Runs the page's programs in order, as a reader would."""
    monkeypatch.chdir(tmp_path)
    page = pathlib.Path(__file__).parents[2] / "docs/planner.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 3 and plan.load("plan.json") == names["plans"]
    assert "allreduce of float" in capsys.readouterr().out

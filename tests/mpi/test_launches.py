"""Mismatched launches between ranks: right values, or an explicit error on all ranks."""

import pathlib

import patience
import pytest
from contract import together

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("launches_worker.py"))
# No case should reach this deadline.
LIMITS = {"JAXCCOMP_TIMEOUT_SECONDS": f"{patience.seconds(120):g}"}
CHECKED = {"JAXCCOMP_CHECK_LAUNCHES": "1"}
_LINES = pathlib.Path(WORKER).read_text(encoding="utf-8").splitlines()
_FIRST = _LINES.index("def left_out_of_lines(rank):") + 1


def run(*cases, env=None):
    watch = patience.Stopwatch()
    done = launch.run(
        2, [WORKER, *cases], env=LIMITS | (env or {}), timeout_seconds=patience.seconds(100)
    )
    assert not done.error, done.output
    assert "WRONG" not in done.output
    assert watch.seconds() < 60
    return done.output


@pytest.mark.parametrize(
    "cases",
    together(
        "threads_of_one_communicator",
        "threads_that_compile",
        "threads_with_v_variants",
        "threads_that_compile_one_name",
        "uneven_batches",
        "stands_still",
        "collectives_in_branches",
    ),
)
def test_threads_and_uneven_launches_return_right_values(cases):
    output = run(*cases)
    for case in cases:
        assert output.count(f"{case}: right") == 2, output


def test_programs_from_the_compilation_cache_return_right_values(tmp_path):
    output = run("programs_from_a_cache", env={"JAXCCOMP_TEST_FOLDER": str(tmp_path)})
    assert output.count(": right") == 2, output


@pytest.mark.parametrize(
    "case,words",
    [
        ("debug_nans", ["collective mismatch", "jit_jaxccomp_allreduce"]),
        ("callback_before", ["have come apart", "1 launch of it on rank 1"]),
        ("callback_before_the_first", ["have come apart"]),
        ("callback_between", ["rank 1 of 'world' left launch 3"]),
    ],
)
def test_mismatched_launches_raise_on_all_ranks(case, words):
    output = run(case)
    assert output.count("was told") == 2, output
    for word in words:
        assert output.count(word) >= 2, output


def test_threads_with_one_program_return_right_values_or_raise():
    # Right values or an error, depending on timing.
    output = run("threads_with_one_program")
    assert "was told" not in output or "everal threads" in output, output


@pytest.mark.parametrize(
    "case,words",
    [
        ("left_out_of_lines", [f"launches_worker.py:{_FIRST + n}" for n in (5, 6)]),
        ("left_out_of_steps", ["step 3", "step 4"]),
        ("left_out_of_ordered_steps", ["in step 3 would take", "in step 4, in send"]),
    ],
)
def test_launch_check_raises_for_silent_mismatches(case, words):
    output = run(case, env=CHECKED)
    assert output.count("was told") == 2, output
    for word in words:
        assert word in output, output


def test_independent_collectives_in_different_orders_match_or_raise():
    """Right values if XLA uses the same order; otherwise an error that says what to do."""
    output = run("other_orders_of_xla")
    assert output.count(": right") == 2 or output.count("may run them in different orders") == 2

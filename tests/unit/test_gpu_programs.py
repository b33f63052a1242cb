"""The random programs of tests/gpu/nccl.py: the same from the same seed, and right in NumPy."""

import importlib
import pathlib
import sys

import numpy as np
import pytest

GPU = pathlib.Path(__file__).parents[1] / "gpu"
sys.path.insert(0, str(GPU))
programs = importlib.import_module("programs")
sys.path.remove(str(GPU))


def test_programs_are_a_matter_of_seed_and_number():
    made = [programs.make(7, number, 2) for number in range(300)]
    assert made == [programs.make(7, number, 2) for number in range(300)]
    assert made != [programs.make(8, number, 2) for number in range(300)]
    assert len(set(made)) > 290
    steps = [step for program in made for step in program]
    assert {step.way for step in steps} == set(programs.WAYS)
    assert {step.op for step in steps} == set(programs.OPS)
    assert {step.dtype for step in steps} == set(programs.DTYPES)
    assert {step.root for step in steps} == {0, 1} and any(step.follows for step in steps)
    assert {len(program) for program in made} == set(range(1, programs.MOST_STEPS + 1))
    mixed = [program for program in made if len({step.way.backend for step in program}) == 3]
    assert len(mixed) > 100


def test_lossy_ways_get_what_they_change_and_nothing_follows_them():
    for number in range(300):
        program = programs.make(3, number, 4)
        for before, step in zip((None, *program), program, strict=False):
            if not step.way.is_exact:
                assert step.dtype != "int32" and step.op != "max"
            if step.follows:
                assert before is not None and before.way.is_exact


def test_a_quarter_of_the_launches_run_a_program_for_the_first_time():
    numbers = [programs.launched(7, launch) for launch in range(1000)]
    assert numbers == [programs.launched(7, launch) for launch in range(1000)]
    assert set(numbers) == set(range(250))
    assert all(number <= launch // 4 for launch, number in enumerate(numbers))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_values_are_exact_in_every_dtype(size):
    for number in range(100):
        program = programs.make(5, number, size)
        for results in programs.expected(program, size, launch=number):
            for step, result in zip(program, results, strict=True):
                largest = np.abs(result.astype(np.float64)).max()
                assert largest <= size * (programs.LARGEST + 2) < 256
                assert np.all(result.astype(np.float64) % 1 == 0)
                assert result.dtype == programs.DTYPES[step.dtype]
                shape = (
                    (size, step.count) if step.op in ("allgather", "alltoall") else (step.count,)
                )
                assert result.shape == shape


def test_a_program_by_hand():
    raw = programs.Way("native")
    program = (
        programs.Step("sum", raw, "int32", 3, 0, False),
        programs.Step("bcast", raw, "float32", 3, 1, True),
        programs.Step("alltoall", raw, "int32", 1, 0, False),
    )
    results = programs.expected(program, 2, launch=0)
    # Ranks have [-2, 3, 1] and [1, -1, 4]; their sum's first value, -1, makes 2 of 3.
    assert [list(each[0]) for each in results] == [[-1, 2, 5]] * 2
    # Rank 1's operand is [2, 0, -2] before that.
    assert [list(each[1]) for each in results] == [[4, 2, 0]] * 2
    rows = [programs.base(program[2], 2, rank, 2, 0) for rank in range(2)]
    assert np.array_equal(results[1][2], np.stack([rows[0][1], rows[1][1]]))


def test_what_is_wrong_is_found():
    exact = programs.Step("sum", programs.Way("nccl"), "float32", 3, 0, False)
    lossy = programs.Step("sum", programs.Way("native", "int8"), "float32", 3, 0, False)
    want = np.float32([1, 0, 3])
    near = want + np.float32([0, 0.01, 0])
    assert not programs.wrong(exact, want, want, 2)
    assert not programs.wrong(exact, np.float32([1, -0.0, 3]), want, 2)
    assert "1 of 3 values, the first at 1: 0.0" in programs.wrong(exact, near, want, 2)
    assert not programs.wrong(lossy, near, want, 2)
    assert programs.wrong(lossy, want + 2, want, 2)
    assert programs.wrong(lossy, np.float32([1, np.nan, 3]), want, 2)
    assert "float32[2] instead of" in programs.wrong(exact, want[:2], want, 2)
    assert "float64" in programs.wrong(exact, want.astype(np.float64), want, 2)


def test_a_failure_can_be_described():
    way = programs.Way("xla", "int8")
    step = programs.Step("bcast", way, "bfloat16", 700, 1, True)
    assert programs.described((step,)) == ["bcast xla int8, bfloat16[700], root 1, follows"]

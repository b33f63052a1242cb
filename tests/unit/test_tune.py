"""The measurements of `tune`, their order and its report, with simulated runs."""

import io
import json
import pathlib

import pytest
from golden_errors import check_text, raises

from jaxccomp import errors
from jaxccomp.cli import main, tune
from jaxccomp.launch import mps, tuning
from jaxccomp.launch.gpus import Gpu

HERE = str(pathlib.Path(__file__))
GPU = (Gpu("GPU-0"),)


def plan(**changes):
    return tuning.Plan(**{"program": ["p.py"], "counts": [1, 2, 4], "batch": 64, **changes})


def measured(rates, chosen, tell=lambda line: None):
    """Returns the results if successive runs of each case have the given rates."""
    left = {name: list(values) for name, values in rates.items()}

    def run(_, case):
        rate = left[case.name].pop(0)
        if isinstance(rate, str):
            raise errors.LaunchError(rate)
        return rate

    return tuning.measure(chosen, tell, run)


def test_all_cases_have_the_batch_of_one_process_per_replica():
    cases = plan(gpus=GPU, vmap=True).cases()
    assert [case.name for case in cases] == [
        "1 process",
        *("2 processes, MPS", "2 processes, no MPS", "4 processes, MPS", "4 processes, no MPS"),
        *("1 process, vmap of 2", "1 process, vmap of 4", "1 process, 4 times the batch"),
    ]
    assert [case.device_batch for case in cases] == [64] * 7 + [256]
    assert not any(case.why_not for case in cases)


def test_cases_that_cannot_run_have_a_row_with_the_reason():
    reasons = {case.name: case.why_not for case in plan(gpus=GPU, no_mps="not here").cases()}
    assert reasons["2 processes, MPS"] == "not here" and not reasons["2 processes, no MPS"]
    assert "{replicas}" in reasons["1 process, vmap of 2"]
    reasons = {case.name: case.why_not for case in plan(counts=[3], batch=64, vmap=True).cases()}
    assert reasons["3 processes"] == "a batch of 64 is not 3 equal ones"
    assert reasons["1 process, vmap of 3"] == reasons["3 processes"]
    assert "MPS shares GPUs" in reasons["3 processes, MPS"]


def test_rounds_are_interleaved_and_failures_are_not_repeated():
    told = []
    rates = {"1 process": [1, 2], "2 processes": ["broken\nall of it"], "1 process, 2 times": []}
    rates["1 process, 2 times the batch"] = [3, 4]
    results = measured(rates, plan(counts=[1, 2], rounds=2), told.append)
    assert [line.split(": ")[1] for line in told] == [
        *("1 process", "2 processes", "1 process, 2 times the batch"),
        *("1 process", "1 process, 2 times the batch"),
    ]
    shown = tune.table(results)
    assert "not measured: broken" in shown and "all of it" not in shown


@pytest.mark.parametrize(
    "two,four,larger,said",
    [
        ([120, 130, 140], [90] * 3, [50] * 3, "best: 2 processes, 1.30 times 1 process"),
        ([80] * 3, [90] * 3, [50] * 3, "best: 1 process; nothing with the same batch is faster"),
        ([100, 130, 140], [90] * 3, [50] * 3, "their ranges overlap"),
        ([120, 130, 140], [90] * 3, [150] * 3, "Faster still (1.50), but another training"),
    ],
)
def test_verdict_names_the_fastest_case(two, four, larger, said):
    rates = {
        "1 process": [90, 100, 110],
        "2 processes": two,
        "4 processes": four,
        "1 process, 4 times the batch": larger,
    }
    results = measured(rates, plan())
    assert said in tune.verdict(results)
    assert "1.00" in tune.table(results).splitlines()[1]
    file = io.StringIO()
    tune.write(plan(), results, "1.2", file)
    written = json.loads(file.getvalue())
    assert written["verdict"] == tune.verdict(results)
    by_name = {row["name"]: row for row in written["cases"]}
    assert by_name["2 processes"]["rounds"] == two
    assert by_name["4 processes"]["ratio"] == 0.9
    assert "MPS shares GPUs" in by_name["4 processes, MPS"]["not_measured"]


def test_verdict_without_measurements_says_so():
    results = measured({"1 process": ["a"]}, plan(counts=[1]))
    assert tune.verdict(results) == "nothing could be measured"


def test_placeholders_and_variables_are_filled_per_case():
    case = tuning.Case("", 2, 32, replicas=3)
    assert tuning.filled("--b={batch},{replicas},{other}", case) == "--b=32,3,{other}"
    assert tuning.environment(plan(), case) == {
        "JAXCCOMP_TUNE_BATCH": "32",
        "JAXCCOMP_TUNE_REPLICAS": "3",
        "JAX_PLATFORMS": "cpu",
    }
    assert "JAX_PLATFORMS" not in tuning.environment(plan(gpus=GPU), case)


@pytest.fixture
def no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["tune", "ranks-per-gpu", HERE], "there is no GPU here: nvidia-smi is not on PATH"),
        (["tune", "ranks-per-gpu", "no.py"], "there is no file 'no.py'"),
        (["tune", "ranks-per-gpu", "--device", "cpu", "--rounds", "0", HERE], "--rounds"),
        (["tune", "ranks-per-gpu", "--device", "cpu", "--within", "0", HERE], "--within"),
        (["tune", "ranks-per-gpu", "--device", "cpu", "--ranks-per-gpu", "a", HERE], "1,2,4"),
        (["tune", "ranks-per-gpu", "--device", "cpu", "--json", "no/a", HERE], "no folder"),
        (["run", "-n", "2", "--log-dir", f"{HERE}/logs", HERE], "no logs can be written"),
        (["run", "-n", "2", "--mps", HERE], "--mps is for GPUs, and there is none"),
        (["run", "-n", "2", "--ranks-per-gpu", "2", HERE], "--ranks-per-gpu is for GPUs"),
        (["run", "-n", "2", "--memory-fraction", "0.2", HERE], "--memory-fraction is for GPUs"),
        (["run", "-n", "2", "--thread-percentage", "20", HERE], "give --mps as well"),
        (["run", "-n", "2", "--mps", "--hosts", "a,b", HERE], "of this machine only"),
        (["run", "-n", "9", "--hosts", "a:4,b:4", HERE], "9 ranks do not fit"),
        (["run", "-n", "0", HERE], "at least 1"),
        (["run", "-n", "1", "--timeout", "0", HERE], "--timeout must be positive"),
        (["run", "-n", "2", "no.py"], "there is no file 'no.py'"),
    ],
)
def test_invalid_arguments_exit_with_status_2(arguments, said, no_gpu, capsys):
    assert main.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_missing_mps_daemon_raises_launch_error(no_gpu):
    assert mps.state().startswith("cannot be used: nvidia-cuda-mps-control is not on PATH")
    with raises(errors.LaunchError, "nvidia-cuda-mps-control", "PATH", "--mps"):
        with mps.running(GPU):
            raise AssertionError


def within(seconds, takes, **changes):
    """Returns the results, the cases run and the elapsed seconds of a fake clock."""
    clock, ran = [100.0], []

    def run(limited, case):
        ran.append(case.name)
        clock[0] += min(takes[case.name], limited.timeout_seconds)
        if takes[case.name] > limited.timeout_seconds:
            raise errors.LaunchError(f"not done after {limited.timeout_seconds:g} s")
        return 10.0

    chosen = plan(within_seconds=seconds, **changes)
    results = tuning.measure(chosen, run=run, now=lambda: clock[0])
    return {each.case.name: each for each in results}, ran, clock[0] - 100


def test_time_budget_skips_runs_that_do_not_fit():
    takes = {"1 process": 10, "2 processes": 10, "1 process, 2 times the batch": 10}
    results, ran, used = within(45, takes, counts=[1, 2], rounds=3)
    assert ran == [*takes, "1 process"] and used == 40
    assert len(results["1 process"].rounds) == 2 and results["1 process"].left_out == 1
    assert results["2 processes"].median == 10.0 and results["2 processes"].left_out == 2
    said = tune.left_out(list(results.values()))
    check_text(said, "1 process (1 more", "2 processes (2 more")
    assert "vmap" not in said  # left out for another reason


def test_sufficient_time_budget_skips_no_run():
    takes = {"1 process": 10, "2 processes": 10, "1 process, 2 times the batch": 10}
    results, ran, _ = within(1000, takes, counts=[1, 2], rounds=2)
    assert ran == [*takes, *takes] and not tune.left_out(list(results.values()))


def test_case_without_a_run_is_reported_as_left_out():
    takes = {"1 process": 30, "2 processes": 30, "1 process, 2 times the batch": 30}
    results, _, used = within(50, takes, counts=[1, 2], rounds=1)
    assert used <= 50
    assert results["2 processes"].error == ("left out: 20 s were left, and runs take up to 30 s")
    written = io.StringIO()
    tune.write(plan(), list(results.values()), "1.2", written)
    row = json.loads(written.getvalue())["cases"][1]
    assert row["not_measured"].startswith("left out") and row["rounds_left_out"] == 1
    assert "2 processes" in json.loads(written.getvalue())["left_out"]


def test_run_that_exceeds_the_time_budget_is_stopped_and_no_failure():
    takes = {"1 process": 10, "2 processes": 300, "1 process, 2 times the batch": 10}
    results, _, used = within(60, takes, counts=[1, 2], rounds=1, timeout_seconds=100)
    assert used == 60
    assert results["2 processes"].error == "left out: not done in the 50 s that were left"


def test_run_that_exceeds_its_own_limit_is_a_failure():
    takes = {"1 process": 10, "2 processes": 300, "1 process, 2 times the batch": 10}
    results, _, _ = within(600, takes, counts=[1, 2], rounds=1, timeout_seconds=100)
    assert results["2 processes"].error == "not done after 100 s"
    assert not results["2 processes"].left_out


def test_time_budget_runs_cases_without_mps_last():
    takes = dict.fromkeys((case.name for case in plan(counts=[2], gpus=GPU).cases()), 10)
    _, ran, _ = within(1000, takes, counts=[2], gpus=GPU, vmap=True, rounds=1)
    assert ran[-1] == "2 processes, no MPS" and ran[:2] == ["1 process", "2 processes, MPS"]

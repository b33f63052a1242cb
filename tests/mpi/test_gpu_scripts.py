"""The scripts of `make gpu-check` on the CPU, tiny: known to work before a GPU is at hand."""

import json
import pathlib
import subprocess
import sys

import pytest
from testbed import network

from jaxccomp.bench import launch

pytestmark = pytest.mark.slow
GPU = pathlib.Path(__file__).parents[1] / "gpu"
LIMIT_SECONDS = 240


def lines(tmp_path, name, *arguments):
    """What a script prints on the CPU; it must end well."""
    command = [sys.executable, GPU / f"{name}.py", tmp_path, "--device", "cpu"]
    done = subprocess.run(
        [*map(str, command), *arguments, "--seconds", str(LIMIT_SECONDS - 20)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    return found


def test_random_programs_of_the_engine_and_xla(tmp_path):
    rows = lines(tmp_path, "nccl", "--programs", "12")
    done = [row for row in rows if row.get("part") == "programs"]
    styles = [(row["ranks"], row["style"]) for row in done]
    assert styles == [(2, "axis"), (2, "comm"), (4, "comm")]
    assert [row["programs"] for row in done] == [12, 12, 2] and not any(r["wrong"] for r in done)
    assert {"native int8", "xla raw", "xla int8"} <= set(done[0]["ways"])
    assert {row["not_run"] for row in rows if "not_run" in row} >= {"nccl raw"}


def test_a_rank_that_is_late(tmp_path):
    rows = lines(tmp_path, "late")
    assert len(rows) == 2 * 3 * 3 and all(row["equal"] for row in rows)
    assert [row["device_wait"] for row in rows] == 9 * ["host"] + 9 * ["stream"]
    assert all(row["seconds"] > 0.5 for row in rows)  # its root is a second late


def test_a_launch_alone():
    rank = [str(GPU / "nccl_rank.py"), "cpu", "comm", "7", "8", "5", "60", "0"]
    done = launch.run(2, rank)
    assert not done.error, done.output
    row = next(json.loads(each) for each in done.output.splitlines() if '"programs"' in each)
    assert row["programs"] == row["distinct"] == 1 and not row["wrong"]


def test_several_processes_of_a_training(tmp_path):
    arguments = ("--models", "tiny", "--counts", "1,2", "--rounds", "1", "--step-seconds", "0.3")
    *times, row = lines(tmp_path, "accdp", "--allreduce-mib", "1", *arguments)
    assert {each["algorithm"] for each in times} >= {"two_shot", "hierarchical:level=gpu"}
    assert {each["ipc_from_bytes"] for each in times} == {0, 1 << 16}
    assert all(each["seconds"] > 0 and each["ranks"] == 2 for each in times)
    assert all(each["worst_error"] < 1e-5 for each in times if each["codec"] != "int8")
    cases = {case["name"]: case for case in row["cases"]}
    for name in (
        "1 process",
        "2 processes",
        "1 process, vmap of 2",
        "1 process, 2 times the batch",
    ):
        assert cases[name]["samples_per_second"] > 0
    assert row["best_processes"] == "2 processes" and row["ratio"] > 0
    assert "MPS shares GPUs" in cases["2 processes, MPS"]["not_measured"]


def test_a_broadcast_over_a_slow_link(tmp_path):
    if reason := network.why_not():
        pytest.skip(reason)
    rows = lines(tmp_path, "broadcast", "--mib", "4", "--cases", "2@0.5gbit")
    seconds = {row["name"]: row for row in rows if "seconds" in row}
    assert sorted(seconds) == ["lossless", "per hop", "raw"]
    for row in seconds.values():
        assert len(row["trace"]) == 2 and row["trace"][0]["wire_seconds"] > 0
    assert rows[-1]["times_as_fast_as_raw"]["lossless"] > 1
    assert [row["not_run"] for row in rows if "not_run" in row] == ["nvcomp.ans"]

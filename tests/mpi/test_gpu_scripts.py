"""The scripts of `make gpu-check` with small sizes on the CPU, to test them without a GPU."""

import json
import pathlib
import subprocess
import sys

import pytest
from testbed import network

pytestmark = pytest.mark.slow
GPU = pathlib.Path(__file__).parents[1] / "gpu"
LIMIT_SECONDS = 240


def lines(tmp_path, name, *arguments):
    """Run a script on the CPU; return its output lines."""
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


def test_collectives_script_returns_right_values_without_a_gpu(tmp_path):
    """Without a GPU, nvCOMP's codecs are skipped; other results are right."""
    rows = lines(tmp_path, "collectives", "--ranks", "1,2", "--mib", "1", "--counts", "1003")
    axis = [row for row in rows if "backend" in row]
    assert {row["codec"] for row in axis if row["backend"] == "xla"} > {"raw", "int8"}
    assert all(row["compared"] > 1 and "different" not in row for row in axis)
    compared = [row for row in rows if "ranks" in row and "compared" in row]
    assert {row["ranks"] for row in compared} == {1, 2}
    assert {row["codec"] for row in compared} > {"raw", "lossless", "bf16|lossless"}
    assert not any("different" in row for row in compared)
    measured = [row for row in rows if "gib_per_s" in row]
    assert {(row["ranks"], row["op"]) for row in measured} == {
        (ranks, op) for ranks in (1, 2) for op in ("bcast", "allreduce")
    }
    assert all(row["sent_mib"] > 0 for row in measured if row["ranks"] == 2)
    assert all("nvcomp" in row["codec"] for row in rows if "not_run" in row)


def test_accdp_script_measures_several_processes(tmp_path):
    arguments = ("--models", "tiny", "--counts", "1,2", "--rounds", "1", "--step-seconds", "0.3")
    *times, row = lines(tmp_path, "accdp", "--allreduce-mib", "1", *arguments)
    assert {(each["codec"], each["algorithm"]) for each in times} >= {
        ("none", "two_shot"),
        ("lossless", "auto"),
    }
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


def test_broadcast_script_measures_codecs_over_a_slow_link(tmp_path):
    if reason := network.why_not():
        pytest.skip(reason)
    rows = lines(tmp_path, "broadcast", "--mib", "4", "--cases", "2@0.5gbit")
    seconds = {row["name"]: row for row in rows if "seconds" in row}
    assert sorted(seconds) == ["lossless", "raw"]
    for row in seconds.values():
        assert len(row["trace"]) == 2 and row["trace"][0]["wire_seconds"] > 0
    assert rows[-1]["times_as_fast_as_raw"]["lossless"] > 0  # how fast is not this machine's to say
    assert [row["not_run"] for row in rows if "not_run" in row] == ["nvcomp.ans"]

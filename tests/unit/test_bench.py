"""The parts of the benchmark that run without ranks."""

import json
import sys

import numpy as np
import pytest
from bench import __main__ as beside_peers
from bench import bars, compare, contenders, report, worker
from golden_errors import raises

from jaxccomp import errors
from jaxccomp._native import terminal
from jaxccomp.bench import launch
from jaxccomp.cli import main

OPERATIONS = compare.OPERATIONS


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operands_and_results_have_the_sizes_that_are_reported(operation, ranks):
    x = worker.operand(operation, 1536, 0, ranks)
    assert x.nbytes == 1536
    result = worker.expected(operation, 1536, 0, ranks)
    rows = {"allgather": ranks, "gather": ranks, "scatter": 1 / ranks, "reduce_scatter": 1 / ranks}
    assert result.nbytes == 1536 * rows.get(operation, 1)
    assert result.dtype == np.float32


@pytest.mark.parametrize("operation", OPERATIONS)
def test_memory_baseline_copies_and_adds_each_value_as_often_as_the_operation(
    operation, monkeypatch
):
    """Count copied and added values of three ranks."""
    moved = []
    monkeypatch.setattr(worker.np, "copyto", lambda to, of: moved.append(("copied", of.size)))
    monkeypatch.setattr(worker.np, "add", lambda a, b, out: moved.append(("added", out.size)))
    of_ranks = []
    for rank in range(3):
        moved.clear()
        worker.with_memory(operation, worker.operand(operation, 1200, rank, 3), rank, 3)()
        of_ranks.append([sum(n for what, n in moved if what == of) for of in ("copied", "added")])
    assert (
        of_ranks
        == {
            "bcast": [[0, 0], [300, 0], [300, 0]],
            "allreduce": [[200, 200]] * 3,
            "reduce": [[200, 200], [0, 200], [0, 200]],
            "reduce_scatter": [[0, 200]] * 3,
            "allgather": [[900, 0]] * 3,
            "gather": [[900, 0], [0, 0], [0, 0]],
            "scatter": [[100, 0]] * 3,
            "alltoall": [[300, 0]] * 3,
            "sendrecv": [[300, 0]] * 3,
        }[operation]
    )


def test_alltoall_transposes_blocks():
    n = 3
    results = [worker.expected("alltoall", 1200, rank, n) for rank in range(n)]
    for rank in range(n):
        for source in range(n):
            sent = worker.operand("alltoall", 1200, source, n)[rank]
            np.testing.assert_array_equal(results[rank][source], sent)


@pytest.mark.parametrize("text,size", [("1KiB", 1024), ("64MiB", 64 << 20), ("12", 12), ("3B", 3)])
def test_parse_size_accepts_bytes_and_binary_units(text, size):
    assert terminal.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "1kb", "KiB", "-1", "1.5MiB"])
def test_invalid_sizes_raise_errors_that_show_valid_ones(text):
    with raises(errors.InvalidArgumentError, "64KiB", "1MiB"):
        terminal.parse_size(text)


@pytest.mark.parametrize("arguments", [["--ops", "gossip"], ["--peers", "nccl"], ["--rounds", "0"]])
def test_invalid_arguments_exit_with_status_2(arguments, capsys):
    assert beside_peers.main(arguments) == 2
    assert "python -m bench: " in capsys.readouterr().err
    if "--ops" in arguments:
        assert main.main(["bench", *arguments]) == 2
        assert "python -m jaxccomp bench: " in capsys.readouterr().err


def test_bench_command_starts_ranks_and_writes_a_row_per_case(tmp_path, capsys):
    pytest.importorskip("mpi4py")
    path = tmp_path / "out.jsonl"
    arguments = ["--ops", "bcast,alltoall", "--sizes", "1KiB", "--codecs", "raw,int8"]
    assert main.main(["bench", *arguments, "--json", str(path)]) == 0
    assert "2 ranks" in capsys.readouterr().out
    first, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert first["ranks"] == 2
    assert [(row["op"], row["codec"], row["size_bytes"]) for row in rows] == [
        *(("bcast", "raw", 1024), ("bcast", "int8", 1024)),
        *(("alltoall", "raw", 1024), ("alltoall", "int8", 1024)),
    ]
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in rows)
    exact = [row for row in rows if row["codec"] == "raw"]
    assert all(row["error"] == 0 and row["ratio"] == 1 for row in exact)
    assert all(row["error"] > 0 and row["ratio"] > 3 for row in rows if row not in exact)
    # A broadcast sends the whole value once, an alltoall of two ranks half of each operand.
    assert [row["wire_bytes"] for row in exact] == [1024, 512]
    for row in rows:
        bus = {"bcast": 1, "alltoall": 1 / 2}[row["op"]]
        assert row["algbw"] == pytest.approx(row["size_bytes"] / row["p50_us"] / 1e3)
        assert row["busbw"] == pytest.approx(bus * row["algbw"])


def test_every_baseline_has_a_worker():
    assert {row.name for row in contenders.TABLE} == set(worker.CONTENDERS)
    assert {name for names in contenders.PEERS.values() for name in names} < set(worker.CONTENDERS)


def measured(contender, operation, size_bytes, microseconds):
    key = (contender, operation, size_bytes)
    return key, compare.Measurement(*key, [microseconds])


def test_report_marks_acceptance_thresholds_as_met():
    """If memory is the limit, jaxccomp need not be 1.5 times faster than a peer."""
    results = dict(
        [
            measured("jaxccomp", "bcast", 16 << 20, 110.0),
            measured("memory", "bcast", 16 << 20, 100.0),
            measured("mpi4py", "bcast", 16 << 20, 200.0),
            measured("jax-mpi", "bcast", 16 << 20, 120.0),
            measured("jaxccomp", "allreduce", 16 << 20, 300.0),
            measured("mpi4jax", "allreduce", 16 << 20, 450.0),
        ]
    )
    assert [line.partition(":")[0] for line in bars.lines(results)[:2]] == ["- Met", "- Met"]
    assert bars.lines(results)[2].endswith("is faster above 64 KiB at: none.")


def test_missed_acceptance_thresholds_name_the_faster_baseline():
    results = dict(
        [
            measured("jaxccomp", "allgather", 16 << 20, 125.0),
            measured("memory", "allgather", 16 << 20, 100.0),
            measured("mpi4py", "allgather", 16 << 20, 62.5),
            measured("jax-mpi", "allgather", 16 << 20, 150.0),
            measured("jaxccomp", "gather", 1024, 10.0),
            measured("jax-gloo", "gather", 1024, 20.0),
            measured("mpi4jax", "gather", 1024, 9.0),
        ]
    )
    assert bars.lines(results) == [
        "- Not met: no jitted peer is faster: at 1 of 2 points. But: gather of 1 KiB (mpi4jax, "
        "0.90 x).",
        "- Not met: from 4 MiB on bcast, allreduce, allgather take the fastest jitted peer 1.5 "
        "times as long, or this package at most 1.2 times what memory takes: at 0 of 1 points. "
        "But: allgather of 16 MiB (jax-mpi 1.20 x, memory 0.80 x).",
        "- mpi4py, on buffers that are used again and without JAX, is faster above 64 KiB at: "
        "allgather of 16 MiB (0.50 x).",
    ]


def test_report_without_baselines_has_no_acceptance_thresholds():
    assert bars.lines(dict([measured("jaxccomp", "bcast", 1024, 5.0)])) == []


def plan(names):
    pythons = dict.fromkeys(names, sys.executable)
    return compare.Plan(names, ("bcast",), (1024,), ranks=2, rounds=2, pythons=pythons)


def test_comparison_keeps_the_faster_core_binding(monkeypatch):
    """Also checks that each time is the slowest rank's, and the median over rounds."""
    runs = []

    def run(ranks, program, *, bind, **_):
        runs.append(bind)
        folder = program[program.index("mpi4py") + 1]
        for rank in range(ranks):
            row = {"op": "bcast", "size_bytes": 1024, "rank": rank}
            row["median_us"] = (rank + 1) * (10 if bind == "core" else 5) + len(runs)
            with open(f"{folder}/{rank}.jsonl", "w", encoding="utf-8") as file:
                file.write(json.dumps(row))
        return launch.Outcome("")

    monkeypatch.setattr(launch, "run", run)
    monkeypatch.setattr(compare.os, "cpu_count", lambda: 2)
    results = compare.run(plan(("mpi4py",)), lambda line: None)
    assert runs == ["core", "none", "none"]
    measurement = results["mpi4py", "bcast", 1024]
    assert measurement.rounds_us == [12, 13]
    assert (measurement.bind, measurement.median_us) == ("none", 12.5)


def test_failed_runs_are_reported_with_their_last_line(monkeypatch):
    def run(*_, **__):
        return launch.Outcome("Traceback\nValueError: broken\n", "exit status 1")

    monkeypatch.setattr(launch, "run", run)
    monkeypatch.setattr(launch, "vendor", lambda python: ("MPICH", "5"))
    chosen = plan(("jaxccomp",))
    results = compare.run(chosen, lambda line: None)
    assert results["jaxccomp", "bcast", 1024].error == "exit status 1: ValueError: broken"
    failed, missing = report.lines(chosen, results, {"jax-mpi": "no wrapper"})
    assert failed["error"] and failed["median_us"] is None
    assert missing == {"contender": "jax-mpi", "missing": "no wrapper"}

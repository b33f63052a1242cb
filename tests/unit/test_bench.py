"""The parts of the benchmark that need no ranks."""

import io
import json
import pathlib
import sys

import numpy as np
import pytest

from jaxccomp import errors
from jaxccomp.bench import compare, contenders, launch, report, worker
from jaxccomp.cli import main, terminal

OPERATIONS = compare.OPERATIONS
ROOT = pathlib.Path(__file__).parents[2]


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
def test_the_limit_of_memory_is_what_an_operation_reads_and_writes(operation, monkeypatch):
    """Values copied, and values added, by each of three ranks."""
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


def test_alltoall_is_a_transpose():
    n = 3
    results = [worker.expected("alltoall", 1200, rank, n) for rank in range(n)]
    for rank in range(n):
        for source in range(n):
            sent = worker.operand("alltoall", 1200, source, n)[rank]
            np.testing.assert_array_equal(results[rank][source], sent)


@pytest.mark.parametrize("text,size", [("1KiB", 1024), ("64MiB", 64 << 20), ("12", 12), ("3B", 3)])
def test_sizes(text, size):
    assert terminal.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "1kb", "KiB", "-1", "1.5MiB"])
def test_bad_sizes(text):
    with pytest.raises(errors.InvalidArgumentError, match="a size reads like"):
        terminal.parse_size(text)


@pytest.mark.parametrize("arguments", [["--ops", "gossip"], ["--peers", "nccl"], ["--rounds", "0"]])
def test_bad_arguments_end_with_status_2(arguments, capsys):
    assert main.main(["bench", *arguments]) == 2
    assert "python -m jaxccomp bench: " in capsys.readouterr().err


def test_every_contender_has_a_worker():
    assert {row.name for row in contenders.TABLE} == set(worker.CONTENDERS)
    assert {name for names in contenders.PEERS.values() for name in names} < set(worker.CONTENDERS)


@pytest.mark.parametrize(
    "page,results",
    [
        ("README.md", "docs/results/peers.json"),
        ("docs/jax_distributed.md", "docs/results/transports.jsonl"),
    ],
)
def test_the_tables_are_what_was_measured(page, results):
    text = (ROOT / page).read_text(encoding="utf-8")
    command = f"<!-- python -m jaxccomp bench --table {results} -->\n"
    shown = text[text.index(command) + len(command) : text.index("\n<!-- end -->")]
    with open(ROOT / results, encoding="utf-8") as file:
        assert shown == report.markdown(report.read(file))
    assert shown.count("\n") > 10


def plan(names):
    pythons = dict.fromkeys(names, sys.executable)
    return compare.Plan(names, ("bcast",), (1024,), ranks=2, rounds=2, pythons=pythons)


def test_the_better_binding_is_kept(monkeypatch):
    """And medians are over rounds, of the slowest rank."""
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


def test_failures_are_told(monkeypatch):
    def run(*_, **__):
        return launch.Outcome("Traceback\nValueError: broken\n", "exit status 1")

    monkeypatch.setattr(launch, "run", run)
    monkeypatch.setattr(launch, "vendor", lambda python: ("MPICH", "5"))
    chosen = plan(("jaxccomp",))
    results = compare.run(chosen, lambda line: None)
    assert results["jaxccomp", "bcast", 1024].error == "exit status 1: ValueError: broken"
    file = io.StringIO()
    report.write(chosen, results, {"jax-mpi": "no wrapper"}, file)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert lines[1]["error"] and lines[1]["median_us"] is None
    assert lines[2] == {"contender": "jax-mpi", "missing": "no wrapper"}

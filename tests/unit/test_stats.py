"""Statistics and logs of operations, without ranks."""

import csv
import dataclasses
import json
import pathlib
import re
import types

import pytest
from golden_errors import raises

from jaxccomp import stats, trace
from jaxccomp._native import engine, terminal


def test_stats_without_the_engine_are_zero(monkeypatch):
    monkeypatch.setattr(engine, "available", lambda: False)
    stats.reset()
    assert stats.get().total == stats.OperationStats()


def test_stats_sum_over_operations_and_print_a_table(monkeypatch):
    rows = {
        "bcast": {"calls": 2, "value_bytes": 4096, "sent_bytes": 2048, "seconds": 0.5, "new": 1},
        "allreduce": {"calls": 1, "sent_bytes": 1, "remote_bytes": 1, "seconds": 0.25},
    }
    core = types.SimpleNamespace(stats=lambda: rows)
    monkeypatch.setattr(engine, "available", lambda: True)
    monkeypatch.setattr(engine, "load", lambda: core)
    found = stats.get()
    assert found.total == stats.OperationStats(3, 4096, 2049, 1, 0.75)
    assert found.operations["bcast"].sent_bytes == 2048
    assert "2 KiB" in str(found) and "bcast" in str(found)


@pytest.mark.parametrize(
    "count,text", [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 26, "64 MiB")]
)
def test_format_bytes_selects_the_unit(count, text):
    assert terminal.format_size(count) == text


def logged(**changes):
    row = {field.name: 0 for field in dataclasses.fields(stats.LoggedCall)}
    texts = ("reduce_op", "operands", "where", "communicator", "algorithm")
    row |= dict.fromkeys(texts, "") | {"operation": "bcast", "backend": "native", "codec": "raw"}
    return row | {"asked_algorithm": "auto", "new": 1} | changes


@pytest.fixture
def log(monkeypatch):
    rows = [
        logged(where="b.py:2", calls=3, seconds=0.5, median_seconds=0.001, sent_bytes=1 << 20),
        logged(where="a.py:1", calls=2, failed=1, seconds=2.5, communicator="world"),
        logged(where="c.py:3", calls=7, backend="mpi", operation="allreduce", reduce_op="sum"),
    ]
    core = types.SimpleNamespace(call_log=lambda: (rows, 1.5e9))
    monkeypatch.setattr(engine, "available", lambda: True)
    monkeypatch.setattr(engine, "load", lambda: core)
    return stats.log()


def test_log_without_the_engine_is_empty(monkeypatch):
    monkeypatch.setattr(engine, "available", lambda: False)
    assert stats.log() == stats.CallLog((), 0.0)
    assert str(stats.log()) == "no calls"


def test_log_lists_the_slowest_calls_first(log):
    assert [row.where for row in log.rows] == ["a.py:1", "b.py:2", "c.py:3"]
    _, _, *rows, since = str(log).splitlines()
    first, second, third = ("\n".join(rows[i : i + 2]) for i in (0, 2, 4))
    assert "2 (1 failed)" in first and "2.500 s" in first and "world" in first
    assert "1.000 ms" in second and "1 MiB" in second and "axes" in second
    assert third.split()[:3] == ["c.py:3", "allreduce", "sum"] and " mpi " in third
    assert since.startswith("since 2017-07-1")


def test_log_text_has_at_most_100_columns(monkeypatch):
    row = logged(
        where="a/long/path/to/the/training/program/with/models/train.py:4711",
        operation="reduce_scatterv",
        reduce_op="mean",
        communicator="world/members-0123abcd.all/of-the-third-stage",
        ranks=16384,
        algorithm="parameter_server:partitions=16,chunk=131072",
        codec="int4:block=128,rounding=stochastic|zstd:level=19",
        calls=10**9,
        failed=10**9 - 1,
        operand_bytes=10**15 + 1,
        sent_bytes=10**15 + 1,
        received_bytes=10**15 + 1,
        seconds=1e8,
        wait_seconds=1e8,
        median_seconds=1e5,
        max_seconds=1e5,
    )
    core = types.SimpleNamespace(call_log=lambda: ([row, logged(where="b.py:1")], 1.5e9))
    monkeypatch.setattr(engine, "available", lambda: True)
    monkeypatch.setattr(engine, "load", lambda: core)
    lines = str(stats.log()).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[2].startswith("a/l") and ":4711  reduce" in lines[2] and "16384" in lines[2]
    assert "100000000 s" in lines[3] and "b.py:1" in lines[4]


def test_log_saves_json_and_csv(log, tmp_path):
    log.save(tmp_path / "log.json")
    saved = json.loads((tmp_path / "log.json").read_text())
    assert saved["since"] == 1.5e9
    assert [stats.LoggedCall(**row) for row in saved["rows"]] == list(log.rows)
    log.save(tmp_path / "log.csv")
    with open(tmp_path / "log.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["where"] for row in rows] == ["a.py:1", "b.py:2", "c.py:3"]
    assert rows[0]["seconds"] == "2.5" and rows[2]["backend"] == "mpi"
    with raises(OSError, "log.csv", golden=False):
        log.save(tmp_path / "no" / "log.csv")


def test_programs_of_the_observing_page_run(tmp_path, monkeypatch, capsys):
    """Runs the page's programs in order, as a reader would."""
    monkeypatch.chdir(tmp_path)
    stats.reset()
    page = pathlib.Path(__file__).parents[2] / "docs/observing.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 3 and names["slowest"].calls == 10
    assert "10 calls" in capsys.readouterr().out
    with open("calls.csv", encoding="utf-8", newline="") as file:
        assert [row["calls"] for row in csv.DictReader(file)][0] == "10"
    assert trace.merge("all.json", "trace-0.json").ranks == (0,)

import types

import pytest

from jaxccomp import comm, stats
from jaxccomp._bootstrap import world
from jaxccomp._native import engine


def test_without_the_engine(monkeypatch):
    monkeypatch.setattr(engine, "available", lambda: False)
    stats.reset()
    assert stats.get().total == stats.OperationStats()


def test_sums_and_table(monkeypatch):
    rows = {
        "bcast": {"calls": 2, "value_bytes": 4096, "sent_bytes": 2048, "seconds": 0.5, "new": 1},
        "allreduce": {"calls": 1, "sent_bytes": 1, "remote_bytes": 1, "seconds": 0.25},
        "alltoall": {"calls": 0, "nccl_calls": 7, "nccl_bytes": 3 << 20},
    }
    core = types.SimpleNamespace(stats=lambda: rows)
    monkeypatch.setattr(comm, "_state", world.World(0, 1))
    monkeypatch.setattr(engine, "available", lambda: True)
    monkeypatch.setattr(engine, "load", lambda: core)
    found = stats.get()
    assert found.total == stats.OperationStats(
        3, 4096, 2049, 1, 0.75, nccl_calls=7, nccl_bytes=3 << 20
    )
    assert found.operations["bcast"].sent_bytes == 2048
    assert "2 KiB" in str(found) and "bcast" in str(found)
    last = str(found).splitlines()[-2:]
    assert [line.split() for line in last] == [
        ["alltoall", "(nccl)", "7", "3", "MiB"],
        ["all", "(nccl)", "7", "3", "MiB"],
    ]


@pytest.mark.parametrize(
    "count,text", [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 26, "64 MiB")]
)
def test_format_bytes(count, text):
    assert stats.format_bytes(count) == text

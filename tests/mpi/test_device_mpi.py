"""The option device_mpi_bytes between ranks without a GPU, and what is said of the MPI here."""

import json
import pathlib

import pytest

from jaxccomp._bootstrap import cuda_aware_mpi
from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("device_mpi_worker.py"))


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_everything_works_as_before(ranks):
    done = launch.run(ranks, [WORKER], env={"JAXCCOMP_DEVICE_MPI_BYTES": "1"}, timeout_seconds=120)
    assert not done.error, done.output
    rows = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    assert sorted(row["rank"] for row in rows) == list(range(ranks))
    for row in rows:
        others = [each for rank, each in enumerate(row["reasons"]) if rank != row["rank"]]
        assert len(others) == ranks - 1
        assert all("takes no part" in reason for reason in others)


def test_a_library_that_does_not_start_is_a_reason(monkeypatch):
    monkeypatch.setattr(cuda_aware_mpi, "_ASKS", "raise SystemExit('no network here')")
    cuda_aware_mpi._ask.cache_clear()
    assert "no network here" in cuda_aware_mpi._ask()
    monkeypatch.setattr(cuda_aware_mpi, "_ASKS", "import time; time.sleep(60)")
    monkeypatch.setattr(cuda_aware_mpi, "_MOST_SECONDS", 0.5)
    cuda_aware_mpi._ask.cache_clear()
    assert "did not answer" in cuda_aware_mpi._ask()
    cuda_aware_mpi._ask.cache_clear()

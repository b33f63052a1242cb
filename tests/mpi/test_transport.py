"""The MPI transport's own checks, between processes."""

import os
import pathlib

import patience
import pytest

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("transport_worker.py"))
LIBRARY = os.environ.get("JAXCCOMP_MPI_TESTS", "")


@pytest.mark.skipif(
    not os.path.exists(LIBRARY), reason="JAXCCOMP_MPI_TESTS names no library (make test sets it)"
)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_mpi_transport_passes_its_checks(ranks):
    done = launch.run(ranks, [WORKER, LIBRARY], timeout_seconds=patience.seconds(240))
    assert not done.error, done.output

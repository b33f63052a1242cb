"""Profiles under mpiexec: measured, agreed on, and chosen by."""

import pathlib

import pytest

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("profile_worker.py"))


@pytest.mark.parametrize(
    "case,ranks",
    [
        pytest.param("tuned", 4, marks=pytest.mark.slow),
        ("planned", 3),
        ("differs", 3),
        ("misfits", 3),
    ],
)
def test_profiles(case, ranks, tmp_path):
    path = str(tmp_path / "profile.json")
    done = launch.run(ranks, [WORKER, case, path], timeout_seconds=120)
    assert not done.error, done.output

"""Profiles under mpiexec: measuring, agreement of ranks, and choices."""

import os
import pathlib

import patience
import pytest

from jaxccomp._runtime import ucx
from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("profile_worker.py"))


@pytest.mark.parametrize(
    "case,ranks",
    [
        pytest.param("tuned", 4, marks=pytest.mark.slow),
        pytest.param("planned", 3, marks=pytest.mark.slow),
        pytest.param("resumed", 2, marks=pytest.mark.slow),
        ("differs", 3),
        ("misfits", 3),
    ],
)
def test_ranks_measure_share_and_apply_one_profile(case, ranks, tmp_path):
    path = str(tmp_path / "profile.json")
    done = launch.run(ranks, [WORKER, case, path], timeout_seconds=patience.seconds(120))
    assert not done.error, done.output


@pytest.mark.slow
@pytest.mark.skipif(
    "JAXCCOMP_LIBUCP" not in os.environ and bool(ucx.why_missing()), reason="needs UCX"
)
def test_profile_measured_over_ucx_selects_ucx(tmp_path):
    """The ranks of the command use UCX; programs with this profile then use UCX too."""
    path = str(tmp_path / "profile.json")
    done = launch.run(2, [WORKER, "measured", path], timeout_seconds=patience.seconds(120))
    assert not done.error, done.output
    done = launch.run(2, [WORKER, "over_ucx", path], timeout_seconds=patience.seconds(120))
    assert not done.error, done.output


@pytest.mark.slow
def test_pinned_plans_apply_and_different_files_raise(tmp_path):
    """Record plans with a profile, pin them without it, and give one rank another file."""
    path = str(tmp_path / "plan.json")
    for case in ("records", "pinned", "unlike_plans"):
        done = launch.run(3, [WORKER, case, path], timeout_seconds=patience.seconds(120))
        assert not done.error, (case, done.output)

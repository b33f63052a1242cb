"""The tests of tests/mpi/ranks, in jax.distributed processes without MPI."""

import importlib.util
import pathlib

import patience
import pytest
from contract.selection import ALL
from ucx import processes

RANKS = pathlib.Path(__file__).parents[1] / "mpi" / "ranks"
IN_RANK = RANKS.parent / "in_rank.py"
# Test files by number of ranks; the other files of tests/mpi/ranks test MPI.
FILES = {
    2: [
        "test_contract_mpi.py",
        "test_messages.py",
        "test_errors.py",
        *(["test_optim_mpi.py"] if ALL else []),
    ],
    3: [
        "test_contract_mpi.py",
        "test_mpmd.py",
        "test_delta_base.py",
        "test_stress_mpi.py",
        "test_errors.py",
        "test_handles_mpi.py",
        "test_outer_mpi.py",
    ],
}
MAX_CHARACTERS = 12_000


def test_environment_has_no_mpi4py():
    assert importlib.util.find_spec("mpi4py") is None


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_rank_passes_the_rank_tests_without_mpi(ranks, tmp_path):
    arguments = ["-o", f"faulthandler_timeout={patience.seconds(50):g}"]
    files = [str(RANKS / name) for name in FILES[ranks]]
    started = processes.start(
        ranks,
        [str(IN_RANK), str(tmp_path), *arguments, *files],
        {"JAXCCOMP_TEST_SLOW": "also", "JAXCCOMP_TIMEOUT_SECONDS": f"{patience.seconds(60):g}"},
    )
    processes.finish(started, 400)
    logs = {log.stem: log.read_text(errors="replace") for log in sorted(tmp_path.glob("rank-*"))}
    if any(each.returncode for each in started):
        # If a test failed on some ranks only, omit the logs of the other ranks.
        telling = {name: log for name, log in logs.items() if "not on this one" not in log}
        shown = "\n".join(
            f"===== {name}\n{log[-MAX_CHARACTERS:]}" for name, log in (telling or logs).items()
        )
        pytest.fail(f"exit status {[each.returncode for each in started]}\n{shown}")
    assert " passed" in logs["rank-0"]
    print(logs["rank-0"].splitlines()[-1])

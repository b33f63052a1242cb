"""Runs the tests of `ranks` in every process of MPI jobs, one job per number of ranks."""

import os
import pathlib
import signal

import patience
import pytest
from contract.selection import ALL

from jaxccomp._runtime import ucx
from jaxccomp.bench import launch

HERE = pathlib.Path(__file__).parent
FILES = [
    "test_contract_mpi.py",
    "test_mpmd.py",
    "test_messages.py",
    "test_stress_mpi.py",
    "test_mpi_backend.py",
    "test_delta_base.py",
    "test_errors.py",
    "test_optim_mpi.py",
    "test_outer_mpi.py",
    "test_nonfinite_mpi.py",
    "test_toolkit_mpi.py",
    "test_handles_mpi.py",
    "test_custom_schedules_mpi.py",
    "test_observed_mpi.py",
    "test_wide_sums_mpi.py",
    "test_mpi4jax_mpi.py",
]
# These compile much, and do not depend on the number of ranks.
ON_TWO_RANKS = ("test_outer_mpi.py", "test_nonfinite_mpi.py", "test_toolkit_mpi.py")
# The same; `make test-all` runs them on all numbers of ranks.
SELDOM_ON_OTHERS = ("test_optim_mpi.py", "test_custom_schedules_mpi.py", "test_mpi4jax_mpi.py")
# Tests that depend on the number of ranks.
ON_THREE_RANKS = (
    *("test_contract_mpi.py", "test_messages.py"),
    *("test_mpi_backend.py", "test_errors.py"),
)
MAX_CHARACTERS = 12_000


def run(ranks, folder, files, *, timeout_seconds, transport="auto"):
    """Start pytest on ``ranks`` ranks.

    Returns:
      The error and the end of each rank's output, as text; without an error "" and rank 0's output.
    """
    arguments = ["-o", f"faulthandler_timeout={patience.seconds(50):g}"]
    done = launch.run(
        ranks,
        ["-P", str(HERE / "in_rank.py"), str(folder), *arguments, *map(str, files)],
        env={
            "JAXCCOMP_TEST_RANKS": str(ranks),
            "JAXCCOMP_TEST_SLOW": "also",  # slow jobs have been selected here already
            "JAXCCOMP_TIMEOUT_SECONDS": f"{patience.seconds(60):g}",
            "JAXCCOMP_TRANSPORT": transport,
        },
        timeout_seconds=timeout_seconds,
    )
    logs = sorted(folder.glob("rank-*.txt"))
    texts = {log.stem: log.read_text(errors="replace") for log in logs}
    if not done.error:
        return "", texts["rank-0"]
    # If a test failed on some ranks only, the others' logs say nothing more.
    telling = {name: text for name, text in texts.items() if "not on this one" not in text}
    shown = "\n".join(
        f"===== {name}\n{text[-MAX_CHARACTERS:]}" for name, text in (telling or texts).items()
    )
    return f"{ranks} ranks: {done.error}", f"{done.output[-MAX_CHARACTERS:]}\n{shown}"


@pytest.mark.parametrize(
    "ranks",
    [pytest.param(1, marks=pytest.mark.slow), 2, 3, pytest.param(4, marks=pytest.mark.slow)],
)
def test_every_rank_passes_the_rank_tests(ranks, tmp_path):
    left_out = ON_TWO_RANKS if ALL else ON_TWO_RANKS + SELDOM_ON_OTHERS
    left_out = () if ranks == 2 else left_out
    names = ON_THREE_RANKS if ranks == 3 and not ALL else FILES
    files = [HERE / "ranks" / name for name in names if name not in left_out]
    error, output = run(ranks, tmp_path, files, timeout_seconds=patience.seconds(400))
    assert not error, f"{error}\n{output}"
    assert " passed" in output
    print(output.splitlines()[-1])


@pytest.mark.skipif(
    "JAXCCOMP_LIBUCP" not in os.environ and bool(ucx.why_missing()), reason="needs UCX"
)
@pytest.mark.parametrize(
    "ranks,files",
    [
        (3, ("test_mpi_backend.py", "test_mpmd.py", "test_errors.py")),
        (2, tuple(FILES)),
    ],
)
@pytest.mark.slow
def test_rank_tests_pass_over_ucx(ranks, files, tmp_path):
    """MPI starts and joins the ranks; UCX is the engine's transport."""
    files = [HERE / "ranks" / name for name in files]
    error, output = run(
        ranks, tmp_path, files, timeout_seconds=patience.seconds(400), transport="ucx"
    )
    assert not error, f"{error}\n{output}"
    assert " passed" in output


def test_failure_on_one_rank_stops_the_job_and_shows_its_output(tmp_path):
    """A test of the job runner: no hang, and the failed rank's output is shown."""
    failing = tmp_path / "test_failing.py"
    failing.write_text(
        "import os\n"
        "def test_one(ranks):\n"
        "    assert ranks.rank != 1, 'told by rank 1'\n"
        "def test_two(ranks):\n"
        "    ranks.barrier()\n"
    )
    conftest = HERE / "ranks" / "conftest.py"
    path = f"import sys\nsys.path.append({str(HERE.parent)!r})\n"
    (tmp_path / "conftest.py").write_text(path + conftest.read_text())
    error, output = run(2, tmp_path, [failing], timeout_seconds=patience.seconds(60))
    assert "exit status" in error
    assert "told by rank 1" in output


def test_an_interrupt_leaves_no_ranks_behind(tmp_path):
    """Rank 0 interrupts the launching process, and then sleeps."""
    script = tmp_path / "sleep.py"
    script.write_text(
        "import os, pathlib, signal, time\n"
        f"pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch()\n"
        f"os.kill({os.getpid()}, signal.SIGINT)\n"
        "time.sleep(987)\n"
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            launch.run(1, [str(script)], timeout_seconds=patience.seconds(60))
    finally:
        signal.signal(signal.SIGINT, before)
    (pid,) = (int(path.name) for path in tmp_path.iterdir() if path != script)
    left = pathlib.Path(f"/proc/{pid}/stat")  # it may be a zombie
    assert not left.exists() or left.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_jobs_cover_all_files_of_rank_tests():
    assert set(FILES) == {path.name for path in (HERE / "ranks").glob("test_*.py")}

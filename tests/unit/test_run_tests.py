"""The driver behind `make test` (tools/run_tests.py), and `.ci/run`."""

import os
import pathlib
import re
import shutil
import subprocess

import breaks
import pytest
import run_tests


@pytest.mark.parametrize(
    "output,found",
    [
        ("FAILED tests/a.py::t[x y] - boom\n1 failed, 3 passed, 2 skipped in 2.3s", "3 1 2"),
        ("ERROR tests/a.py::t[x y]\n3 passed, 1 error in 80.3s (0:01:20)", "3 1 0"),
        ("ok     one\nFAILED t[x y] (2.1 s)\n10 passed, 1 failed", "10 1 0"),
        ("7 deselected in 0.1s", "0 0 0"),
        ("no tests ran in 0.1s", "0 0 0"),
        ("Segmentation fault", "0 0 0"),
    ],
)
def test_read_results_returns_counts_and_names_of_failed_tests(output, found):
    passed, failed, skipped, names = run_tests.read_results(f"....\n{output}\n")
    assert f"{passed} {failed} {skipped}" == found
    assert [name.rpartition("::")[2] for name in names] == ["t[x y]"] * failed


def test_all_parts_run_and_the_summary_names_failures(tmp_path, monkeypatch, capsys):
    def part(seconds, *scripts):
        return run_tests.Part(seconds, [run_tests.Command(["sh", "-c", s]) for s in scripts])

    parts = {
        "good": part(1, "echo '4 passed in 0.1s'"),
        "bad": part(3, "echo 'FAILED one'; echo '2 passed, 1 failed'; exit 1", "echo 1 passed"),
        "crash": part(2, "echo begun; kill -11 $$"),
    }
    monkeypatch.setattr(run_tests, "PARTS", parts)
    monkeypatch.setattr(run_tests, "GROUPS", {"test": list(parts)})
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    monkeypatch.setattr(
        "sys.argv", ["run_tests.py", "test", "--at-once", "1", "--took", "install=7"]
    )
    assert run_tests.main() == 1
    *before, failures, closing = capsys.readouterr().out.splitlines()
    assert failures == "FAILED: bad: one; crash: exit status -11 after 'begun'"
    assert closing == "7 passed, 2 failed"
    assert [line.split()[0] for line in before if line.startswith("=====")] == ["====="] * 3
    assert any(line.split() == ["install", "7"] for line in before)
    assert (tmp_path / "bad.log").read_text().startswith("FAILED one\n")
    monkeypatch.setattr("sys.argv", ["run_tests.py", "good"])
    assert run_tests.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 0 failed"


ROOT = pathlib.Path(__file__).parents[2]
# Stands in for the Makefile. The test reads SHARE and TOOK from the output.
MAKEFILE = """
dependencies environments:
	@echo installs $@
test: environments
	@echo "share $(SHARE), took $(TOOK)"; echo a warning >&2; echo "$(CLOSING)"; exit $(STATUS)
"""


# `make test` passes its variables on to the make that a test starts.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@needs_make
@pytest.mark.parametrize("failed", [0, 2])
def test_ci_runs_make_test_and_ends_with_its_summary(failed, tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    closing = f"7 passed, {failed} failed"
    variables = f"CLOSING := {closing}\nSTATUS := {min(failed, 1)}"
    (tmp_path / "Makefile").write_text(variables + MAKEFILE)
    done = subprocess.run(
        [tmp_path / ".ci/run"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == min(failed, 1), done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1] == closing and "a warning" in lines
    (given,) = [line for line in lines if line.startswith("share ")]
    assert re.fullmatch(r"share [1-8]/8, took install=\d+ compile=\d+", given)
    assert lines.index("installs dependencies") < lines.index("installs environments")


@needs_make
def test_make_test_runs_the_slow_share_that_its_variables_name():
    """`make test` of the README is the command of `.ci/run`, which adds two variables."""

    def recipe(*variables):
        # -n: print the commands of `test`; the first dependency has commands of its own.
        done = subprocess.run(
            ["make", "-n", "-o", "environments", "PYTHON=python", "test", *variables],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split("\n")[-2].split()

    start = ["python", "tools/run_tests.py", "test"]
    assert recipe() == start
    options = "slow --share 3/8 --took install=7 --took compile=60".split()
    assert recipe("SHARE=3/8", "TOOK=install=7 compile=60") == start + options


def test_commands_of_the_mutation_test_are_parts():
    names = {command.removeprefix("test-") for command in breaks.COMMANDS}
    assert names <= {*run_tests.TEST, *run_tests.GROUPS, "newest-spmd"}
    assert {each.command for each in breaks.BREAKS} <= set(breaks.COMMANDS)

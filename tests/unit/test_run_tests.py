"""The driver behind `make test` (tools/run_tests.py)."""

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


def test_commands_of_the_mutation_test_are_parts():
    names = {command.removeprefix("test-") for command in breaks.COMMANDS}
    assert names <= {*run_tests.TEST, *run_tests.GROUPS, "newest-spmd"}
    assert {each.command for each in breaks.BREAKS} <= set(breaks.COMMANDS)

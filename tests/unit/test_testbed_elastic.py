"""The report of a group whose hosts fail, without a testbed."""

import pytest
from testbed.elastic import report


def steps(begin, end, bits="same", members=(0, 1, 2)):
    """Returns a step at each second."""
    line = {"hash": bits, "members": list(members)}
    return [{"t": float(t), "step": t} | line for t in range(begin, end)]


def lost(t, told):
    """Returns a failure, reported ``told`` seconds after `t`, and the group without the rank."""
    return [{"t": t + told, "failed": "rank 2"}, {"t": t + 2.0, "shrunk": [0, 1]}]


@pytest.fixture
def run():
    """Two hosts that run from second 100 to 150; the third is lost after 20 seconds."""
    logs = [
        (0, [*steps(95, 120), *lost(120.0, 0.5), *steps(123, 151), {"t": 151.0, "loss": 0.25}]),
        (1, [*steps(95, 120), *lost(120.0, 1.5), *steps(123, 151), {"t": 151.0, "loss": 0.25}]),
        (2, steps(95, 120)),
    ]
    befallen = [{"t": 120.0, "kind": "kill", "host": 2}, {"t": 140.0, "kind": "slow", "host": 1}]
    return report.summary(logs, befallen, 100.0, 150.0, hangs=0)


def test_summary_counts_steps_and_recovery_times_by_fault(run):
    assert run["seconds"] == 50 and run["outer_steps"] == 20 + 27
    assert run["steps_by_time"] == [10, 10, 7, 10, 10]
    assert run["befallen"] == [[20.0, "kill", 2], [40.0, "slow", 1]]
    assert (run["steps_with_different_bits"], run["hangs"], run["loss"]) == (0, 0, 0.25)
    killed = run["by_kind"]["kill"]
    assert (killed["count"], killed["noticed"]) == (1, 1)
    assert killed["told_seconds"] == killed["told_seconds_most"] == 1.5
    assert killed["next_step_seconds"] == 3.0
    slow = run["by_kind"]["slow"]
    assert (slow["noticed"], slow["told_seconds"], slow["next_step_seconds"]) == (0, None, None)


def test_summary_ignores_processes_cut_off_by_an_earlier_fault():
    members = [*steps(95, 120), *lost(120.0, 0.5), *steps(123, 151)]
    stopped_before = [*steps(95, 111), {"t": 123.5, "failed": "reset"}, {"t": 123.6, "cut_off": ""}]
    logs = [(0, members), (1, members), (2, steps(95, 120)), (3, stopped_before)]
    befallen = [{"t": 120.0, "kind": "stop", "host": 2}]
    stop = report.summary(logs, befallen, 100.0, 150.0, hangs=0)["by_kind"]["stop"]
    assert (stop["noticed"], stop["told_seconds"], stop["next_step_seconds"]) == (1, 0.5, 3.0)


def test_steps_with_different_bits_are_counted():
    logs = [(0, steps(0, 10)), (1, steps(0, 10, bits="others"))]
    assert report.summary(logs, [], 0.0, 10.0, hangs=1)["steps_with_different_bits"] == 10


@pytest.mark.parametrize(
    "stopped,different",
    [
        ([*steps(0, 6), *steps(6, 7, bits="of three"), {"t": 8.0, "cut_off": "without it"}], 0),
        ([*steps(0, 6), *steps(6, 7, bits="of three")], 1),  # it continued
        ([*steps(0, 5), *steps(5, 7, bits="of three"), {"t": 8.0, "cut_off": "without it"}], 1),
    ],
)
def test_steps_before_a_cut_off_are_excluded_from_the_bit_comparison(stopped, different):
    """The others repeated these steps without that process."""
    others = [*steps(0, 6), *steps(6, 10, bits="of two", members=(0, 1))]
    assert report.steps_with_different_bits([others, others, stopped]) == different
    alone = [*others[:-1], *steps(9, 10, bits="wrong", members=(0, 1)), {"t": 9.5, "cut_off": ""}]
    assert report.steps_with_different_bits([others, alone, stopped]) == different + 1


def test_report_shows_tables_and_plots_of_runs(run, tmp_path):
    quiet = {"faults": "none", "seconds": 100, "outer_steps": 100, "hangs": 0, "loss": 0.5}
    lines = [{"facts": {}}, quiet | {"steps_with_different_bits": 0}, {"faults": "faults"} | run]
    shown = report.table(lines)
    assert "| process killed | 1 | 1 | 1.50 s (1.50 s) | 3.00 s (3.00 s) |" in shown
    assert "| link ten times as slow for 5 s | 1 | 0 |  |  |" in shown
    assert "47 in 50 s with faults, 100 in 100 s without: 94.0% a second" in shown
    assert "0.25 with faults, 0.5 without" in shown
    alone = report.table([lines[0], lines[2]])
    assert "- Outer steps: 47 in 50 s with faults.\n" in alone
    assert alone.endswith("- The loss in the end: 0.25 with faults.")
    pytest.importorskip("matplotlib")
    report.plot(lines, str(tmp_path / "runs.svg"))
    assert (tmp_path / "runs.svg").stat().st_size > 1000

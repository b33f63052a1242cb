"""A profile's choices against all fixed plans, without a testbed: points, results, thresholds."""

import importlib
import json
import re

import numpy as np
import pytest
from golden_errors import raises
from testbed import own, scenario
from testbed import plan as plans
from testbed.planner import points, report, worker

from jaxccomp import errors, schedules
from jaxccomp._native import engine

# A package's __main__ is not its attribute.
command = importlib.import_module("testbed.planner.__main__")


def plan(algorithm, codec, seconds, error=0.0):
    return {"algorithm": algorithm, "codec": codec, "seconds": seconds, "error": error}


def line(op="bcast", size=1 << 20, hosts=2, link="1gbit", codec="lossless", **changes):
    auto, best = plan("chain", codec, 0.002), plan("chain", codec, 0.002)
    made = {"hosts": hosts, "link": link, "op": op, "size": size, "input": points.OPERATIONS[op]}
    made |= {"auto": auto, "best": best, "ratio": 1.0, "plans": [best]}
    return made | changes


@pytest.mark.skipif(not engine.available(), reason=engine.why_missing() or "-")
def test_all_operations_have_a_worker_and_algorithms():
    assert set(points.OPERATIONS) == set(own.OPERATIONS) <= set(schedules.COLLECTIVES)
    assert all(schedules.algorithms(op) for op in points.OPERATIONS)


def test_points_omit_sizes_that_are_too_slow_for_the_link():
    sizes = (1 << 10, 16 << 20)
    found = {
        link: points.points(points.Place(2, link), ("bcast", "reduce"), sizes)
        for link in ("100mbit", "1gbit", "memory")
    }
    assert [each.size for each in found["100mbit"]] == [1 << 10] * 2
    assert found["1gbit"] == found["memory"]
    assert [each.size for each in found["1gbit"]] == [1 << 10] * 2 + [16 << 20] * 2


def test_points_round_trip_through_text():
    these = points.points(points.Place(2, "1gbit"), points.OPERATIONS, (1, 2))
    assert points.from_text(points.to_text(these)) == these and len(these) == 16


def test_places_combine_hosts_and_links():
    assert points.places((4, 2), ("1gbit", "memory")) == [
        points.Place(4, "1gbit"),
        points.Place(4, "memory"),
        points.Place(2, "1gbit"),
        points.Place(2, "memory"),
    ]
    assert points.Place(2, "memory").burst_bytes == 0
    assert points.Place(2, "1gbit").burst_bytes == plans.Shape(10**9).burst
    for hosts, link, facts in (
        (9, "1gbit", ("--hosts", "2 to 8", "9")),
        (1, "memory", ("--hosts", "2 to 8", "1")),
        (2, "9gbit", ("100mbit to 5gbit", "'9gbit'")),
    ):
        with raises(errors.InvalidArgumentError, facts):
            points.places([hosts], [link])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"ratio": 1.11},
            "Not met: between hosts, the chosen plan .* 0 of 1 points.* 1.11 x: bcast",
        ),
        ({"auto": plan("chain", "raw", 1.0)}, "Not met: bfloat16 weights go lossless .* 0 of 1"),
        (
            {"plans": [plan("a", "raw", 1.0, -0.41)]},
            "Not met: between hosts, prices .*: 41% and 41%",
        ),
        (
            {"auto": plan("chain", "lossless", 1.0, 0.16), "plans": [plan("a", "raw", 1, 0.16)]},
            "Not met: between hosts, prices .*: 16% and 16%",
        ),
        ({"link": "memory"}, "Not met: bfloat16 weights go raw in memory: at 0 of 1"),
        (
            {"link": "memory", "size": 1024, "ratio": 1.21, "auto": plan("chain", "raw", 1.0)},
            "Not met: in memory, below 4 KiB, .* at most 1.2 times",
        ),
        (
            {"link": "memory", "size": 4096, "ratio": 1.06, "auto": plan("chain", "raw", 1.0)},
            "Not met: in memory, the chosen plan takes at most 1.05 times",
        ),
    ],
)
def test_each_acceptance_threshold_fails_independently(changed, says):
    bars = report.bars([line(**changed)])
    missed = [bar for bar in bars if "Not met" in bar]
    assert len(missed) == 1 and len(bars) == 3, bars
    assert re.search(says, missed[0]), missed


def test_report_compares_choices_with_and_without_measured_times():
    """Old files, measured with profiles that had times of operations."""
    both, prices = plan("ring", "raw", 0.0023), plan("chain", "lossless", 0.002)
    made = line(auto=both, plans=[both, prices], by_prices=prices, ratio_by_prices=1.0)
    (point,) = report.points_of([made])
    assert point["auto"] == prices and point["ratio"] == 1.0
    (first, *_) = report.bars([point])
    assert "By times of operations and prices at 0 of 1, and at most 1.15 x" in first


def test_acceptance_thresholds_of_hosts_and_memory_are_separate():
    same = plan("chain", "raw", 1.0)
    bars = report.bars([line(), line(link="memory", ratio=1.3, auto=same, best=same, plans=[same])])
    between, within = bars[0], bars[2]
    assert between.startswith("- Met: between hosts") and "at 1 of 1 points" in between
    assert within.startswith("- Not met: in memory") and "at 0 of 1 points (at 1 of" in within


def test_codec_thresholds_cover_only_compressed_points():
    """Sums use float32; small values may be sent raw."""
    those = [line(op="reduce", codec="raw"), line(size=1 << 16, codec="raw")]
    assert len(report.bars(those)) == 2
    assert report.bars([]) == ["- Nothing was measured."]


def test_table_shows_choice_time_and_ratio_by_size():
    other = line(
        size=1 << 16,
        auto=plan("chain", "raw", 0.0005, 0.5),
        best=plan("binomial", "raw", 0.0004),
        ratio=1.25,
        plans=[plan("binomial", "raw", 0.0004, 0.5)],
    )
    text = report.table([{"facts": {}}, {"profile": {}}, other, line(), line(op="reduce")])
    rows = text.splitlines()
    heads = "| links | operation | 64 KiB | 1 MiB | prices off by, median | at most |"
    assert rows[0] == heads and len(rows) == 4 + 1 + 3
    cells = "chain, raw: 0.5 ms, 1.25 x of binomial, raw | chain, lossless: 2 ms, 1.00 x"
    assert rows[2] == f"| 2 x 1gbit | bcast | {cells} | 25% | 50% |"
    assert rows[3] == "| 2 x 1gbit | reduce |  | chain, lossless: 2 ms, 1.00 x | 0% | 0% |"


def test_partial_results_file_is_resumed(tmp_path):
    path, place = tmp_path / "lines.jsonl", points.Place(2, "1gbit")
    wanted = [points.Point("bcast", 1 << 20), points.Point("reduce", 1 << 20)]
    command._begin(path, "random")
    assert command._missing(path, place, wanted) == wanted
    command._append(path, line())
    whole = path.read_text()
    # A process was killed while writing.
    path.write_text(whole + json.dumps(line(op="reduce"))[:-9])
    command._begin(path, "random")
    assert path.read_text() == whole and len(scenario.read(path)) == 2
    assert command._missing(path, place, wanted) == wanted[1:]
    assert command._missing(path, points.Place(4, "1gbit"), wanted) == wanted
    others = [("random", text) for text in ("", '{"facts": {}}\n', "x\n")]
    for source, text in [("trained", whole), *others]:
        path.write_text(text)
        with raises(errors.InvalidArgumentError, "--json", "lines.jsonl"):
            command._begin(path, source)
        assert path.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--turns", "0"], "--turns must be at least 1"),
        (["--within", "0"], "--within positive"),
        (["--sizes", "9x"], "a size reads like 64KiB"),
        (["--hosts", "9"], "--hosts takes 2 to 8, not 9"),
    ],
)
def test_invalid_arguments_exit_with_status_2(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(scenario.command_line, "exit_on_signals", lambda: None)
    assert command.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_differing_results_are_detected():
    sums, bits = np.ones(4, np.float32), np.ones(4, np.uint16)
    assert worker._alike(sums * (1 + 1e-7), sums) and not worker._alike(sums * 1.01, sums)
    assert worker._alike(bits, bits) and not worker._alike(bits + np.uint16(1), bits)

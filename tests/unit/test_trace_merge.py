"""Traces of ranks on one clock: known offsets, and invalid files."""

import dataclasses
import json
import random

import pytest
from golden_errors import check_text, raises

from jaxccomp import errors
from jaxccomp.cli import main
from jaxccomp.trace import Origin, Task, Timeline, merge


class Rank:
    """Records messages at true times, with a clock that is ahead by some seconds."""

    def __init__(self, rank, size, clock, ahead_seconds, begin_seconds=0.0, unix_seconds=None):
        self.ahead, self.begin = ahead_seconds, begin_seconds
        unix = begin_seconds if unix_seconds is None else unix_seconds
        begin_ns = round((begin_seconds + ahead_seconds) * 1e9)
        origin = Origin(rank, size, f"host-{clock}", clock, begin_ns, round(unix * 1e9))
        self.timeline = Timeline(origin=origin)

    def add(self, kind, at, peer, number, took=1e-6):
        begin = at - self.begin
        task = Task(begin, begin + took, 0, "allreduce", kind, peer, 0, 8, number)
        self.timeline.tasks.append(task)


def ranks(*clocks, **how):
    """Returns a rank for each (clock, seconds ahead)."""
    return [Rank(i, len(clocks), *each, **how) for i, each in enumerate(clocks)]


def exchange(sender, receiver, at, delay):
    number = exchange.number = exchange.number + 1
    sender.add("send", at, receiver.timeline.origin.rank, number)
    receiver.add("recv", at + delay, sender.timeline.origin.rank, number)


exchange.number = 0


def saved(folder, team):
    paths = [folder / f"{each.timeline.origin.rank}.json" for each in team]
    for each, path in zip(team, paths, strict=True):
        each.timeline.save(path)
    return paths


def test_clock_offsets_are_within_the_reported_uncertainty(tmp_path):
    drawn = random.Random(0)
    team = ranks(("a", 5e5), ("a", 5e5), ("b", 12.5), ("c", 9e5))
    true = {"a": 0.0, "b": 5e5 - 12.5, "c": 5e5 - 9e5}
    for i in range(200):
        sender, receiver = drawn.sample(team, 2)
        # Ranks of b and c exchange no messages: c's offset is derived through a.
        if {sender.timeline.origin.clock, receiver.timeline.origin.clock} == {"b", "c"}:
            continue
        exchange(sender, receiver, 1 + i * 1e-3, drawn.uniform(20e-6, 300e-6))
    merged = merge(tmp_path / "all.json", *reversed(saved(tmp_path, team)))
    assert merged.ranks == (0, 1, 2, 3) and merged.messages > 100
    assert [each.by for each in merged.clocks] == ["reference", "messages", "messages"]
    assert [each.ranks for each in merged.clocks] == [(0, 1), (2,), (3,)]
    for clock, each in zip("abc", merged.clocks, strict=True):
        assert each.hosts == (f"host-{clock}",)
        assert abs(each.seconds - true[clock]) <= each.uncertainty_seconds + 1e-9
        assert each.uncertainty_seconds < 100e-6
    content = json.loads((tmp_path / "all.json").read_text())
    assert content["otherData"]["clocks"] == json.loads(
        json.dumps([dataclasses.asdict(each) for each in merged.clocks])
    )
    # No message arrives before it is sent, and all times use the first clock.
    arrows = {}
    for event in content["traceEvents"]:
        if event["name"] == "message":
            arrows.setdefault(event["id"], {})[event["ph"]] = event
    assert len(arrows) == merged.messages
    unsure = 2e6 * max(each.uncertainty_seconds for each in merged.clocks)
    for each in arrows.values():
        assert each["s"]["ts"] <= each["f"]["ts"] + unsure
        assert each["s"]["pid"] != each["f"]["pid"]
    lines = str(merged).splitlines()
    assert len(lines) == 3 and "us, by messages" in lines[1] and "host-b" in lines[1]


def test_merge_keeps_start_times_of_ranks_on_one_host(tmp_path):
    first = Rank(0, 2, "a", 100.0, begin_seconds=3.0)
    second = Rank(1, 2, "a", 100.0, begin_seconds=5.0)
    exchange(first, second, 6.0, 0.5)
    merge(tmp_path / "all.json", *saved(tmp_path, [first, second]))
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    times = {each["pid"]: each["ts"] for each in events if each["ph"] == "X"}
    assert times == pytest.approx({0: 3e6, 1: 3.5e6})


def test_merge_uses_the_wall_clock_without_messages_in_both_directions(tmp_path):
    first = Rank(0, 2, "a", 50.0)
    second = Rank(1, 2, "b", 7.0, unix_seconds=0.25)
    exchange(first, second, 1.0, 1e-4)
    merged = merge(tmp_path / "all.json", *saved(tmp_path, [first, second]))
    assert merged.clocks[1].by == "wall clock" and merged.clocks[1].uncertainty_seconds is None
    assert merged.clocks[1].seconds == pytest.approx(50.0 - 7.0 + 0.25)
    assert "uncertain, by wall clock" in str(merged)


def test_ambiguous_message_numbers_are_ignored(tmp_path):
    """Messages between devices of one process have numbers that repeat in other processes."""
    team = ranks(("a", 1.0), ("b", 2.0))
    for each in team:
        each.add("send", 1.0, 1, 77)
        each.add("recv", 0.5 + each.ahead, 0, 77)
    # Seen twice in one process: ambiguous.
    for at in (2.0, 3.0):
        team[0].add("send", at, 1, 78)
    team[1].add("recv", 1.0, 0, 78)
    for sender, receiver in (team, reversed(team)):
        exchange(sender, receiver, 4.0, 1e-5)
    merged = merge(tmp_path / "all.json", *saved(tmp_path, team))
    assert merged.messages == 4
    assert merged.clocks[1].seconds == pytest.approx(-1.0, abs=1e-9)


def test_small_clock_drift_is_accepted(tmp_path):
    team = ranks(("a", 0.0), ("b", 0.0))
    exchange(*team, 1.0, 10e-6)
    exchange(*reversed(team), 2.0, -30e-6)
    merged = merge(tmp_path / "all.json", *saved(tmp_path, team))
    assert merged.clocks[1].uncertainty_seconds == pytest.approx(10e-6, rel=1e-3)


def test_merge_refuses_traces_of_different_runs(tmp_path):
    team = ranks(("a", 0.0), ("a", 0.0))
    exchange(*team, 5.0, -1.0)
    with raises(errors.InvalidArgumentError, "1.000000 s", "one host"):
        merge(tmp_path / "all.json", *saved(tmp_path, team))
    team = ranks(("a", 0.0), ("b", 0.0))
    exchange(*team, 5.0, -1.0)
    exchange(*reversed(team), 5.0, -1.0)
    with raises(errors.InvalidArgumentError, "1.000000 s", "messages"):
        merge(tmp_path / "all.json", *saved(tmp_path, team))
    team = [Rank(0, 2, "a", 0.0), Rank(1, 3, "a", 0.0)]
    with raises(errors.InvalidArgumentError, "0.json' is of 2 ranks", "1.json' of 3"):
        merge(tmp_path / "all.json", *saved(tmp_path, team))
    path = saved(tmp_path, team)[0]
    with raises(errors.InvalidArgumentError, "0.json", "rank 0"):
        merge(tmp_path / "all.json", path, path)
    assert not (tmp_path / "all.json").exists()


def trace():
    first = Rank(0, 2, "a", 1.0)
    first.add("send", 1.0, 1, 5)
    return first.timeline


def content(folder):
    trace().save(folder / "whole.json")
    return json.loads((folder / "whole.json").read_text())


def changed(where, value):
    """Returns a change of a trace that replaces one value; None removes it."""

    def change(made):
        *path, last = where
        for key in path:
            made = made[key]
        if value is None:
            del made[last]
        else:
            made[last] = value

    return change


TASK = ("traceEvents", -1)
BAD = {
    "foreign": (changed(("otherData",), {"format": "x"}), ("'x'", "Timeline.save")),
    "no format": (changed(("otherData",), None), "Timeline.save"),
    "merged": (
        changed(("otherData", "format"), "jaxccomp.trace.merged"),
        ("'jaxccomp.trace.merged'", "Timeline.save"),
    ),
    "version": (changed(("otherData", "version"), 1), ("version 1", "version 2")),
    "rank": (changed(("otherData", "rank"), 2), ("rank", "0 to 1", "2")),
    "rank of another kind": (changed(("otherData", "rank"), True), ("rank", "True")),
    "size": (changed(("otherData", "size"), 1e9), ("size", "1 to 16777216")),
    "clock": (changed(("otherData", "clock"), None), ("clock", "4096", "None")),
    "long clock": (
        changed(("otherData", "clock"), "c" * 5000),
        ("clock", "4096"),
    ),
    "begin": (
        changed(("otherData", "begin_ns"), -1),
        ("begin_ns", "0 to 4611686018427387904"),
    ),
    "huge begin": (
        changed(("otherData", "begin_ns"), 10**30),
        ("begin_ns", "0 to 4611686018427387904"),
    ),
    "no events": (changed(("traceEvents",), {}), "traceEvents"),
    "event": (changed(TASK, 7), ("traceEvents[11]", "'X'")),
    "phase": (changed((*TASK, "ph"), "B"), ("traceEvents[11]", "'X'")),
    "no args": (changed((*TASK, "args"), None), ("traceEvents[11]", "'X'")),
    "time": (changed((*TASK, "ts"), "1"), ("traceEvents[11]", "ts", "microseconds")),
    "infinite": (changed((*TASK, "dur"), float("inf")), ("traceEvents[11]", "dur", "microseconds")),
    "not a number": (
        changed((*TASK, "ts"), float("nan")),
        ("traceEvents[11]", "ts", "microseconds"),
    ),
    "negative": (changed((*TASK, "dur"), -1), ("traceEvents[11]", "dur", "microseconds")),
    "kind": (changed((*TASK, "tid"), 11), ("traceEvents[11]", "tid", "0 to 10", "not 11")),
    "peer": (
        changed((*TASK, "args", "peer"), -2),
        ("traceEvents[11]", "peer", "-1 to 16777216", "-2"),
    ),
    "bytes": (changed((*TASK, "args", "bytes"), None), ("traceEvents[11]", "bytes", "None")),
    "message": (
        changed((*TASK, "args", "message"), "0x1"),
        ("traceEvents[11]", "message", "16 hexadecimal digits", "'0x1'"),
    ),
    "message of another kind": (
        changed((*TASK, "args", "message"), 5),
        ("traceEvents[11]", "message", "16 hexadecimal digits", "not 5"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_merge_refuses_traces_with_invalid_fields(name, tmp_path):
    change, facts = BAD[name]
    made = content(tmp_path)
    change(made)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(made))
    with raises(errors.InvalidArgumentError, path, facts):
        merge(tmp_path / "all.json", path)


def test_flight_report_refuses_every_truncated_file(tmp_path):
    trace().save(tmp_path / "whole.json")
    whole = (tmp_path / "whole.json").read_bytes()
    cut = tmp_path / "cut.json"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with raises(errors.InvalidArgumentError, "cut.json", golden=False):
            merge(tmp_path / "all.json", cut)
    merge(tmp_path / "all.json", tmp_path / "whole.json")


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[" * 100_000, b"1" * 10_000, b"[]", b"null"])
def test_merge_refuses_files_without_a_trace(data, tmp_path):
    (tmp_path / "other.json").write_bytes(data)
    with raises(errors.InvalidArgumentError, "other.json", golden=False):
        merge(tmp_path / "all.json", tmp_path / "other.json")


def test_merge_command_overwrites_no_file(tmp_path, capsys):
    team = ranks(("a", 0.0), ("b", 3.0))
    exchange(*team, 1.0, 1e-5)
    exchange(*reversed(team), 2.0, 1e-5)
    paths = [str(path) for path in saved(tmp_path, team)]
    output = str(tmp_path / "all.json")
    assert main.main(["trace", "merge", output, *paths]) == 0
    assert "2 of 2 ranks, 2 messages" in capsys.readouterr().out
    # No file is overwritten: the first path may be a trace to be read.
    assert main.main(["trace", "merge", *paths]) == 2
    check_text(capsys.readouterr().err, paths[0])
    assert main.main(["trace", "merge", str(tmp_path / "no" / "folder"), *paths]) == 2
    check_text(capsys.readouterr().err, tmp_path / "no" / "folder")
    assert main.main(["trace", "merge", str(tmp_path / "new"), str(tmp_path / "none")]) == 2
    check_text(capsys.readouterr().err, tmp_path / "none")


def test_merge_needs_a_trace(tmp_path):
    with raises(errors.InvalidArgumentError, "merge", "one rank"):
        merge(tmp_path / "all.json")
    Timeline().save(tmp_path / "empty.json")
    merged = merge(tmp_path / "all.json", tmp_path / "empty.json")
    assert merged.messages == 0 and merged.ranks == (0,)

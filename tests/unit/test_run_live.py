"""`run --live`: the ranks' reports and the launcher's table."""

import io
import itertools

import pytest

from jaxccomp import stats
from jaxccomp.cli import live
from jaxccomp.launch import lines

COUNTERS = {"calls": 0, "sent_bytes": 0, "raw_bytes": 0, "wait_seconds": 0, "blocked": 0}


class Terminal(io.StringIO):
    """A stream that interprets the two ANSI sequences of the view."""

    def isatty(self):
        return True

    def screen(self):
        shown = []
        for part in self.getvalue().replace("\x1b[J", "").split("\x1b["):
            if shown:
                count, _, part = part.partition("F")
                del shown[len(shown) - int(count) :]
            shown += part.splitlines()
        return shown


@pytest.fixture
def clock(monkeypatch):
    """Each reading of the clock is one second later."""
    seconds = itertools.count()
    monkeypatch.setattr(live.time, "monotonic", lambda: float(next(seconds)))


def view_of(stream, ranks=2):
    def show(rank, line, is_error):
        print(f"[{rank}] {line}", file=stream)

    return live.View(ranks, show, stream)


def test_table_shows_rates_savings_and_waits_of_each_rank(clock):
    view = view_of(io.StringIO())
    for rank in range(2):
        for second in (1, 2):
            view.report(
                rank,
                COUNTERS
                | {
                    "calls": 10 * second,
                    "sent_bytes": second << 20,
                    "raw_bytes": second << 22,
                    "wait_seconds": rank * second / 4,
                    "blocked": rank,
                },
            )
    title, _, first, second = view.table(5.0)
    assert title == "5 s, 2 ranks: sent 4 MiB, now 2 MiB/s, saved 12 MiB (4.0x)"
    assert first.split() == "0 20 10.0 2 MiB 1 MiB/s 6 MiB (4.0x) 0 % 0".split()
    assert second.split() == "1 20 10.0 2 MiB 1 MiB/s 6 MiB (4.0x) 25 % 1".split()


def test_lines_of_the_program_appear_above_the_table(clock):
    stream = Terminal()
    view = view_of(stream)
    for text in ("one", "two"):
        view.report(0, COUNTERS)
        view.show(1, text, False)
    view.report(1, COUNTERS)
    view.close()
    screen = stream.screen()
    assert screen[:2] == ["[1] one", "[1] two"]
    # One table: a title, a line of names, and two ranks.
    assert len(screen) == 6 and sum("ranks: sent" in line for line in screen) == 1


def test_table_without_a_terminal_is_printed_every_ten_seconds(clock):
    stream = io.StringIO()
    view = view_of(stream)
    for _ in range(25):  # a second each
        view.report(0, COUNTERS)
    assert stream.getvalue().count("ranks: sent") == 2
    assert "\x1b" not in stream.getvalue()


def test_a_rank_that_no_longer_reports_has_no_rates(clock):
    view = view_of(io.StringIO())
    sent = COUNTERS | {"calls": 10, "sent_bytes": 1000, "raw_bytes": 2000}
    view.report(1, sent)
    for calls in range(1, 8):
        view.report(0, COUNTERS | {"calls": calls})
    title, _, running, stopped, note = view.table(8.0)
    assert "now 0 B/s" in title
    assert running.split()[:3] == ["0", "7", "1.0"]
    assert stopped.split()[:3] == ["1", "10", "0.0"]
    assert note == "no report for 7 s from rank 1"


def test_totals_include_values_before_a_reset_or_restart(clock):
    view = view_of(io.StringIO())
    for sent_bytes in (5 << 20, 8 << 20, 1 << 20, 2 << 20):
        view.report(0, COUNTERS | {"sent_bytes": sent_bytes})
    assert "sent 10 MiB" in view.table(1.0)[0]


def test_table_of_many_ranks_shows_the_ranks_that_wait_least(clock):
    view = view_of(io.StringIO(), 100)
    for rank in range(100):
        view.report(rank, COUNTERS | {"wait_seconds": 100 - rank})
    table = view.table(1.0)
    assert [line.split()[0] for line in table[2:-1]] == [str(rank) for rank in range(84, 100)]
    assert table[-1] == "the 84 other ranks wait longer"
    assert max(map(len, table)) <= 100


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        COUNTERS | {"calls": "1"},
        COUNTERS | {"calls": True},
        COUNTERS | {"calls": -1},
        COUNTERS | {"calls": float("nan")},
        COUNTERS | {"calls": float("inf")},
        COUNTERS | {"calls": 10**400},
        COUNTERS | {"more": 1},
    ],
    ids=str,
)
def test_invalid_reports_are_ignored(value, clock):
    stream = io.StringIO()
    view = view_of(stream)
    view.report(0, value)
    assert len(view.table(1.0)) == 2  # no rank


def test_counters_are_the_sums_of_the_statistics():
    total = stats.get(wait=True).total
    found = lines.parse_counters(lines.counters())
    assert (found.calls, found.sent_bytes, found.raw_bytes, found.blocked) == (
        *(total.calls, total.sent_bytes, total.raw_bytes),
        0,
    )

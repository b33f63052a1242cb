"""The table of ``run --live``: bytes that each rank sends and saves, and how long it waits.

Each rank reports its counters once per second as a control message (launch/lines.py) on its
standard error, so the view needs no port and no shared folder.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from jaxccomp._native import terminal
from jaxccomp.launch.lines import Counters, parse_counters

_DRAW_SECONDS = 0.25
_LOG_SECONDS = 10.0
# A rank that has not reported for as long has no rates: its process may be stopped or have ended.
_SILENT_SECONDS = 5.0
_SHOWN = 16
_WIDTH = 100


class _Rank:
    """The totals of a rank, and its rates between its last two messages."""

    def __init__(self, now: float):
        self.last, self.at = Counters(), now
        self.total, self.rate = Counters(), Counters()

    def update(self, new: Counters, now: float) -> None:
        seconds = max(now - self.at, 1e-3)
        for field in dataclasses.fields(Counters):
            name = field.name
            value = getattr(new, name)
            since = value - getattr(self.last, name)
            if since < 0:  # the program has reset its counters, or was started again
                since = value
            setattr(self.total, name, getattr(self.total, name) + since)
            setattr(self.rate, name, since / seconds)
        self.last, self.at = new, now

    def is_silent(self, now: float) -> bool:
        """Return whether the rank has not reported for _SILENT_SECONDS."""
        return now - self.at >= _SILENT_SECONDS

    def rate_at(self, now: float) -> Counters:
        """Return the rates; zero for a silent rank."""
        return Counters() if self.is_silent(now) else self.rate


class View:
    """A table of all ranks below the lines of the program.

    On a terminal the table is drawn again whenever it changes; elsewhere it is printed every 10 s.

    Args:
      ranks: the number of ranks.
      show: prints a line of the program, as `job.print_line`.
      stream: where the table is printed.
    """

    def __init__(
        self, ranks: int, show: Callable[[int | None, str, bool], None], stream: TextIO = sys.stderr
    ):
        self._size, self._show, self._stream = ranks, show, stream
        self._ranks: dict[int, _Rank] = {}
        self._begin = self._drawn = time.monotonic()
        self._lines = 0  # of the table on the terminal
        self._is_terminal = stream.isatty()

    def show(self, rank: int | None, line: str, is_error: bool) -> None:
        """Print a line of the program above the table."""
        self._clear()
        self._show(rank, line, is_error)

    def report(self, rank: int, value: object) -> None:
        """Take a rank's message."""
        new = parse_counters(value)
        if new is None:
            return
        now = time.monotonic()
        self._ranks.setdefault(rank, _Rank(self._begin)).update(new, now)
        if now - self._drawn >= (_DRAW_SECONDS if self._is_terminal else _LOG_SECONDS):
            self._draw(now)

    def close(self) -> None:
        """Print the last table."""
        self._draw(time.monotonic())
        self._lines = 0

    def table(self, now: float) -> list[str]:
        """Return the lines of the table."""
        total = Counters()
        rates = {rank: each.rate_at(now) for rank, each in self._ranks.items()}
        for each in self._ranks.values():
            for field in dataclasses.fields(Counters):
                name = field.name
                setattr(total, name, getattr(total, name) + getattr(each.total, name))
        rate = sum(each.sent_bytes for each in rates.values())
        title = (
            f"{now - self._begin:.0f} s, {self._size} ranks: sent {_size(total.sent_bytes)}, now "
            f"{_size(rate)}/s, saved {_saved(total)}"
        )
        rows = [("rank", "calls", "calls/s", "sent", "sent/s", "saved", "waiting", "blocked")]
        # The others wait for the ranks that wait least.
        order = sorted(self._ranks, key=lambda rank: (rates[rank].wait_seconds, rank))
        shown = sorted(order[:_SHOWN])
        for rank in shown:
            each = self._ranks[rank]
            rows.append(
                (
                    str(rank),
                    f"{each.total.calls:.0f}",
                    f"{rates[rank].calls:.1f}",
                    _size(each.total.sent_bytes),
                    f"{_size(rates[rank].sent_bytes)}/s",
                    _saved(each.total),
                    f"{100 * rates[rank].wait_seconds:.0f} %",
                    f"{each.last.blocked:.0f}",
                )
            )
        width = min(_WIDTH, self._columns())
        # A longer line would take two lines of the terminal, and `_clear` would delete one of them.
        found = [title[:width], *terminal.lines(rows, ">" * len(rows[0]), width=width)]
        if len(order) > len(shown):
            found.append(f"the {len(order) - len(shown)} other ranks wait longer")
        silent = sorted(rank for rank, each in self._ranks.items() if each.is_silent(now))
        if silent:
            longest = now - min(self._ranks[rank].at for rank in silent)
            which = f"rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}"
            found.append(f"no report for {longest:.0f} s from {which}"[:width])
        return found

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _WIDTH
        except OSError:  # not a terminal
            return _WIDTH

    def _draw(self, now: float) -> None:
        self._clear()
        table = self.table(now)
        print("\n".join(table), file=self._stream, flush=True)
        self._drawn, self._lines = now, len(table)

    def _clear(self) -> None:
        if self._is_terminal and self._lines:
            # ANSI: to the first line of the table, and delete all from there.
            print(f"\x1b[{self._lines}F\x1b[J", end="", file=self._stream, flush=True)
        self._lines = 0


def _saved(counters: Counters) -> str:
    """The bytes that codecs have saved, and the ratio."""
    saved = counters.raw_bytes - counters.sent_bytes
    if saved <= 0 or counters.sent_bytes <= 0:
        return "0 B"
    return f"{_size(saved)} ({counters.raw_bytes / counters.sent_bytes:.1f}x)"


def _size(count: float) -> str:
    return terminal.format_size(round(count))

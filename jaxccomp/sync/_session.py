"""A rank's side of a sync: a thread that runs rounds together with all other members.

The first publisher starts a round with a header (idle, version or close). For a version, each
member reports the version it holds, the weights are sent, and each member reports success or an
error; all members commit the version only if no member reports an error. If a member is lost, the
survivors regroup (``Communicator.shrink``) and continue. Receivers that start later are admitted
between two rounds (``Communicator.admit``), and get the last version in full.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import threading
import time
from typing import Any, NamedTuple

from jaxccomp import comm as _comm
from jaxccomp import config, errors
from jaxccomp.comm import Communicator
from jaxccomp.sync import _layout as layout
from jaxccomp.sync._control import NO_PART, Control, Header, Kind, State, own_settings
from jaxccomp.sync._transfer import Arrays, Transfer
from jaxccomp.sync._versions import Incoming, Outgoing

# The sync ends after this many failed rounds in a row.
_MAX_FAILURES = 3
# Idle rounds (keep-alives of the first publisher) per `timeout_seconds`.
_IDLE_ROUNDS = 8
_MAX_IDLE_SECONDS = 2.0
# How long exit waits for all threads together.
_LEAVE_SECONDS = 10.0

_sessions: set[Session] = set()
_exiting = threading.Event()
_serials: dict[str, itertools.count[int]] = {}


class Meeting(NamedTuple):
    """How a sync begins on a rank.

    Attributes:
      comm: the sync's own communicator, in program order.
      ranks: the number of ranks on this rank's side (publishers or receivers).
      part: this rank's index on its side.
      joins: whether this rank has been admitted to an existing sync.
    """

    comm: Communicator
    ranks: int
    part: int
    joins: bool


def meet(comm: Communicator | None, name: str, publishes: bool) -> Meeting:
    """Exchanges each rank's side. Collective; on an admitted rank it pairs with `_take_in`."""
    taken = _comm.taken_in(name)
    if taken is not None:
        if publishes:
            raise errors.InvalidArgumentError(
                f"this process has joined the sync {name!r}, which only receivers can: a Publisher "
                "is made when all ranks make theirs."
            )
        states = Control(taken).states(State(0))
        used = {state.part for state in states if not state.held}
        free = itertools.filterfalse(used.__contains__, itertools.count())
        newcomers = [r for r, state in enumerate(states) if state.part == NO_PART]
        part = dict(zip(newcomers, free, strict=False))[taken.rank]
        return Meeting(taken, sum(not state.held for state in states), part, True)
    comm = _comm.resolve(comm)
    counter = _serials.setdefault(f"{comm.name}/{name}", itertools.count(1))
    own = comm.duplicate(f"{name}-{next(counter)}").ordered()
    sides = [bool(state.held) for state in Control(own).states(State(int(publishes)))]
    part = sum(side == publishes for side in sides[: own.rank])
    return Meeting(own, sum(side == publishes for side in sides), part, False)


class Session:
    """One sync, on this rank."""

    def __init__(
        self,
        meeting: Meeting,
        name: str,
        publishes: bool,
        leaves: tuple[layout.Leaf, ...],
        trouble: str,
        versions: Outgoing | Incoming,
        codec: str,
    ):
        """Compares the members' descriptions of their weights and starts the thread. Collective.

        Args:
          meeting: the result of `meet`.
          name: the sync's name.
          publishes: whether this rank is a publisher.
          leaves: this rank's parts.
          trouble: this rank's error, if its arguments were invalid; all members raise it.
          versions: this rank's versions.
          codec: the codec of the differences.

        Raises:
          InvalidArgumentError: if the members' weights differ.
        """
        comm = meeting.comm
        self._process = comm.processes[comm.rank]
        self._name = name
        self._part = meeting.part
        self._versions = versions
        self._codec = codec
        rows = [[x.path, x.dtype, x.shape, x.region] for x in leaves]
        self._description = [publishes, rows, trouble, codec]
        self._retired: list[Communicator] = []
        self._comms: list[Communicator] = []
        self._resends = False  # whether admitted members still need the last version
        self._leaving = False
        self._enter(comm, newcomers_only=meeting.joins)
        self._thread = threading.Thread(target=self._run, name="jaxccomp-sync", daemon=True)
        _close_at_exit()
        _sessions.add(self)
        self._thread.start()

    def close(self, seconds: float | None = None) -> bool:
        """Leaves the sync at the next round.

        Args:
          seconds: how long to wait for the thread to end. Default: the option `timeout_seconds`.

        Returns:
          Whether it ended in time.
        """
        with self._versions.changed:
            self._leaving = True
            self._versions.changed.notify_all()
        self._thread.join(config.get("timeout_seconds") if seconds is None else seconds)
        return not self._thread.is_alive()

    def _enter(self, comm: Communicator, newcomers_only: bool) -> None:
        """Continues with the members of `comm`. Collective.

        Args:
          comm: the communicator, in program order.
          newcomers_only: whether this rank has just been admitted. An admitted rank whose weights
            differ is rejected, and raises.
        """
        said = Control(comm).descriptions([*self._description, newcomers_only])
        self._members, refused = described(comm, said)
        if why := refused.get(self._process):
            raise errors.InvalidArgumentError(why)
        self._base = comm  # its name prefixes the names of the sync's communicators
        self._numbers = itertools.count()
        self._open()

    def _open(self) -> None:
        """Makes communicators and programs for the current members."""
        publishers = [p for p, member in self._members.items() if member.publishes]
        first = min(publishers, default=None)
        if first is None:
            raise errors.SyncError("no publisher is left")
        if self._process not in self._members:
            raise errors.SyncError("this rank is no member any more")
        self._leads = first == self._process
        epoch = self._epoch = next(self._numbers)
        made: list[Communicator] = []

        def group(name: str, processes: tuple[int, ...]) -> Communicator:
            made.append(Communicator(f"{self._base.name}/{epoch}.{name}", processes, "program"))
            return made[-1]

        everybody = (first, *(p for p in self._members if p != first))
        self._control = Control(group("control", everybody))
        self._order = everybody
        self._transfer = Transfer(self._members, self._process, group, self._codec)
        # One epoch late: a member may still be in the last operation of the previous epoch.
        for comm in self._retired:
            with contextlib.suppress(errors.CommunicatorError):
                comm.free()
        self._retired, self._comms = self._comms, made

    def _run(self) -> None:
        try:
            with own_settings():
                self._take_part()
        finally:
            _sessions.discard(self)

    def _take_part(self) -> None:
        failures = 0
        while True:
            try:
                if not self._round():
                    self._versions.end()
                    return
                failures = 0
                continue
            except Exception as error:  # any: the program's next call raises it
                failures += 1
                failure = error
            if failures >= _MAX_FAILURES or _exiting.is_set():
                self._versions.end(_text(failure))
                return
            try:
                self._regroup()
            except Exception as error:
                self._versions.end(f"{_text(error)}: {_text(failure)}")
                return

    def _take_in(self) -> None:
        """Admits the processes that wait to join."""
        epoch = f"{self._base.name}/{self._epoch}"
        everybody = _comm.regrouped(self._base, tuple(self._members), epoch)
        grown = everybody.admit(self._name, timeout_seconds=config.get("timeout_seconds"))
        if grown is everybody:
            return  # the processes have stopped waiting
        publishes = self._members[self._process].publishes
        Control(grown).states(State(int(publishes), part=self._part))
        self._enter(grown, newcomers_only=False)
        self._resends = True

    def _regroup(self) -> None:
        """Continues with the surviving members."""
        everybody = _comm.regrouped(self._base, tuple(self._members))
        # Members that exchange nothing with the lost rank notice the failure later.
        left = everybody.shrink(timeout_seconds=config.get("timeout_seconds"))
        self._keep(left.processes)
        self._base = left
        self._numbers = itertools.count()
        self._open()

    def _keep(self, processes: tuple[int, ...]) -> None:
        self._members = {p: self._members[p] for p in processes}

    def _round(self) -> bool:
        """Runs a round. Returns whether another one follows."""
        header = self._control.header(self._next() if self._leads else None)
        if header.kind == Kind.CLOSE:
            return False
        seconds = config.get("timeout_seconds")
        trouble = ""
        source = None
        if header.kind == Kind.VERSION:
            try:
                # Before other ranks begin to wait for these arrays.
                source = self._versions.begin(header, seconds / 2)
            except errors.SyncError as error:
                trouble = str(error)
        # Publishers stay until the first publisher closes.
        leaving = self._leaving and not self._members[self._process].publishes
        held = -1 if trouble else self._versions.held
        waiting = _comm.waiting(self._name)
        states = self._control.states(State(held, leaving, waiting))
        gone = {p for p, state in zip(self._order, states, strict=True) if state.leaves}
        if gone:
            if self._process in gone:
                return False
            self._keep(tuple(p for p in self._members if p not in gone))
            self._open()
            return True
        if any(state.waiting for state in states):
            self._take_in()
            return True
        if header.kind == Kind.VERSION:
            all_held = {state.held for state in states}
            if -1 in all_held:
                self._check(self._control.failures(trouble))
            self._exchange(header, source, referenced=all_held == {header.base} != {0})
        return True

    def _exchange(self, header: Header, source: Any, referenced: bool) -> None:
        failure = ""
        received: Arrays = []
        try:
            base = None
            if referenced:
                whole = self._versions.whole
                assert whole is not None  # all members hold the delta base
                base = whole.arrays
            received = self._transfer.run(source, base)
        except Exception as error:
            failure = _text(error)
            self._versions.distrust()
        self._check(self._control.failures(failure))
        self._versions.commit(header, received)
        self._resends = False

    def _check(self, failures: list[str]) -> None:
        for process, failure in zip(self._order, failures, strict=True):
            if failure:
                raise errors.SyncError(f"rank {process} of the world: {failure}")

    def _next(self) -> Header:
        versions = self._versions
        assert isinstance(versions, Outgoing)  # the first publisher leads
        seconds = min(_MAX_IDLE_SECONDS, config.get("timeout_seconds") / _IDLE_ROUNDS)
        pending = versions.wait_for_pending(seconds, lambda: self._leaving)
        if pending is not None:
            return Header(Kind.VERSION, pending.number, versions.held, pending.published_at)
        if self._resends and versions.whole is not None:
            return Header(Kind.VERSION, versions.number, 0, versions.whole.published_at)
        return Header(Kind.CLOSE if self._leaving else Kind.IDLE)


def described(
    comm: Communicator, said: list[Any]
) -> tuple[dict[int, layout.Member], dict[int, str]]:
    """The members, by process, and the errors of refused newcomers; the same on all ranks.

    Args:
      comm: the communicator.
      said: for each rank: whether it publishes, its arrays, its error text, its codec, and whether
        it joins an existing sync.

    Raises:
      InvalidArgumentError: if ranks other than newcomers have errors or differ.
    """
    members: dict[int, layout.Member] = {}
    refused = {}
    for rank, (process, (publishes, rows, trouble, codec, joins)) in enumerate(
        zip(comm.processes, said, strict=True)
    ):
        try:
            if trouble:
                raise errors.InvalidArgumentError(f"rank {rank} of {comm.name!r}: {trouble}")
            if codec != said[0][3]:
                raise errors.InvalidArgumentError(
                    f"ranks 0 and {rank} of {comm.name!r} have different codecs: {said[0][3]!r} "
                    f"and {codec!r}."
                )
            member = layout.Member(bool(publishes), tuple(map(_leaf, rows)))
            if joins:
                layout.check_alike(members | {process: member})
            members[process] = member
        except errors.InvalidArgumentError as error:
            if not joins:
                raise
            refused[process] = str(error)
    layout.check_alike(members)
    return members, refused


def _leaf(row: list[Any]) -> layout.Leaf:
    path, dtype, shape, region = row
    return layout.Leaf(path, dtype, tuple(shape), tuple((b, e) for b, e in region))


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@functools.cache
def _close_at_exit() -> None:
    # Registered at first use, not at import: exit handlers run last in, first out, and this one
    # must run before the engine's.
    atexit.register(_close_all)


def _close_all() -> None:
    """Ends the daemon threads, which would run on during interpreter shutdown."""
    _exiting.set()
    end = time.monotonic() + _LEAVE_SECONDS
    for session in list(_sessions):
        session.close(max(0.0, end - time.monotonic()))

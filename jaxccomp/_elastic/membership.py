"""Shrinks a group to the remaining members, and admits processes that ask to join.

Each member has a `Node` of the consensus on its group's membership (`consensus.py`). This module
connects the nodes: the rendezvous sends their messages, a process's record is a file on its host,
and the host's process table shows which processes have ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxccomp import config, errors
from jaxccomp._elastic.agreement import JoinRequest, NoDecision
from jaxccomp._elastic.connections import as_address
from jaxccomp._elastic.consensus import Membership, Message, Node, Outgoing, Record
from jaxccomp._elastic.rendezvous import Rendezvous
from jaxccomp._native import engine
from jaxccomp._runtime import peer_info, ucx
from jaxccomp._runtime.join import set_hosts
from jaxccomp._runtime.world import Group, World, original_name

_TICK_SECONDS = 0.05
_MIN_SILENCE_SECONDS = 0.5  # a Python thread answers, and may be delayed
_DEFAULT_SILENCE_SECONDS = 10.0  # if the option peer_timeout_seconds is 0
_STALE_SECONDS = 86400.0  # age at which files of ended processes are removed
_FILE_PREFIX = "jaxccomp-member-"
# The record of a process that no member has seen: on a separate host.
_UNKNOWN = peer_info.Row(0, 1, -1, 0, 0)


def term_of(name: str) -> int:
    """Return the membership term of the communicator with that name."""
    found = re.search(r"/members-(\d+)\.[0-9a-f]{8}$", name)
    return int(found[1]) if found else 0


def _name(group: str, membership: Membership) -> str:
    members = zlib.crc32(repr(membership.members).encode())
    return f"{group}/members-{membership.term}.{members:08x}"


class _Files:
    """Records of the processes of this host, one file each.

    A file has an HMAC with the job's secret. The file's name has a part of another HMAC, so that
    other users cannot guess the name.
    """

    def __init__(self, state: World, rendezvous: Rendezvous):
        self._state, self._rendezvous = state, rendezvous
        shared = pathlib.Path("/dev/shm")
        usable = os.access(shared, os.W_OK | os.X_OK)
        self._folder = shared if usable else pathlib.Path(tempfile.gettempdir())
        self._records: dict[str, Record] = {}
        self._lock = threading.Lock()
        with contextlib.suppress(OSError):
            self._remove_stale()

    def keep(self, group: str, record: Record) -> None:
        """Store this process's record of that group.

        If that fails, there is no file, and this host cannot confirm that this process has ended.
        """
        path = self._path(self._state.process)
        with self._lock:
            self._records[group] = record
            if path is None:
                return
            data = json.dumps(self._records).encode()
            code = self._rendezvous.derive(b"record", data).hex().encode()
            new = path.with_suffix(".new")
            try:
                with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(code + b"\n" + data)
                new.replace(path)
            except OSError:
                new.unlink(missing_ok=True)
                path.unlink(missing_ok=True)

    def find_ended(self, group: str, process: int, membership: Membership) -> Record | None:
        """Return the record of a process that has ended on this host; None if that is unknown."""
        state = self._state
        if process >= len(state.peers.rows):
            return None
        pid, start_time = peer_info.system_processes(state.peers.rows, state.process)[process]
        if pid == 0 or engine.load().start_time(pid) == start_time:
            return None
        path = self._path(process)
        try:
            assert path is not None
            code, _, data = path.read_bytes().partition(b"\n")
            if path.stat().st_uid != os.getuid():
                return None
            if bytes.fromhex(code.decode()) != self._rendezvous.derive(b"record", data):
                return None
            records = json.loads(data)
            # No entry: the process has never voted in that group.
            found = records.get(group)
            return Record(membership) if found is None else Record.from_json(found)
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def remove(self) -> None:
        """Remove the files of this host's processes, if all others on this host have ended."""
        state = self._state
        seen = peer_info.system_processes(state.peers.rows, state.process)
        if any(pid and engine.load().start_time(pid) == start for pid, start in seen):
            return
        for process in range(len(state.peers.rows)):
            if (path := self._path(process)) is not None:
                path.unlink(missing_ok=True)

    def _path(self, process: int) -> pathlib.Path | None:
        row = self._state.peers.rows[process]
        own = self._state.peers.rows[self._state.process]
        if row.pid == 0 or (row.host, row.pid_space) != (own.host, own.pid_space):
            return None
        named = f"{row.pid_space}-{row.pid}-{row.start_time}"
        code = self._rendezvous.derive(b"file", named.encode()).hex()[:16]
        return self._folder / f"{_FILE_PREFIX}{named}-{code}"

    def _remove_stale(self) -> None:
        """Remove old files of ended processes of this pid namespace."""
        own = self._state.peers.rows[self._state.process]
        for path in self._folder.glob(f"{_FILE_PREFIX}{own.pid_space}-*-*-*"):
            with contextlib.suppress(OSError, ValueError):
                pid, start_time = map(int, path.name.split("-")[-3:-1])
                info = path.stat()
                is_old = time.time() - info.st_mtime > _STALE_SECONDS
                is_ended = engine.load().start_time(pid) != start_time
                if is_old and is_ended and info.st_uid == os.getuid():
                    path.unlink()


class _Member:
    """This process's part of one group.

    Attributes:
      node: the consensus node. Hold `changed` to use it.
      delivered: the term of the membership that the program got last.
    """

    def __init__(self, memberships: Memberships, group: str, membership: Membership):
        files = memberships.files
        silence = config.get("peer_timeout_seconds") or _DEFAULT_SILENCE_SECONDS
        self.group = group
        self.changed = threading.Condition()
        self.delivered = membership.term
        self.node = Node(
            memberships.state.process,
            membership,
            max(silence, _MIN_SILENCE_SECONDS),
            lambda process: files.find_ended(group, process, self.node.membership),
            lambda record: files.keep(group, record),
        )


class Memberships:
    """The groups that this process is a member of, by name. Thread-safe.

    Args:
      state: of this process, after it has met or joined the others.
    """

    def __init__(self, state: World):
        rendezvous = state.out_of_band
        assert isinstance(rendezvous, Rendezvous)
        self.state, self.rendezvous = state, rendezvous
        self.files = _Files(state, rendezvous)
        self._members: dict[str, _Member] = {}
        self._lock = threading.Lock()
        name, processes, _ = state.current
        self.member(name, processes)
        rendezvous.on_posted = self._receive
        rendezvous.on_refused = self._refuse

    def member(self, name: str, processes: Sequence[int]) -> _Member:
        """Return this process's part of a communicator's group; create it if needed."""
        group = original_name(name)
        with self._lock:
            if group not in self._members:
                membership = Membership(term_of(name), tuple(processes))
                self._members[group] = _Member(self, group, membership)
            return self._members[group]

    def change(
        self, name: str, processes: tuple[int, ...], join: Any, timeout: float
    ) -> Membership:
        """Agree with the others on the next membership of a communicator's group.

        Args:
          name: the communicator's name.
          processes: its processes.
          join: see `Node.begin`.
          timeout: seconds to wait for the others.

        Raises:
          CutOffError: when this process is no longer a member.
          InitializationError: when other members live and do not take part.
        """
        member = self.member(name, processes)
        node, deadline = member.node, time.monotonic() + timeout
        with member.changed:
            if node.membership.term <= member.delivered and not node.cut_off:
                node.begin(time.monotonic(), processes, join)
        try:
            while True:
                gone = self.state.failed()
                reported = engine.load().find_reported()
                with member.changed:
                    now = time.monotonic()
                    for process in gone:
                        node.lose(process)
                    for process in reported:
                        node.suspect(process)
                    out = node.tick(now)
                    if node.membership.term > member.delivered:
                        member.delivered = node.membership.term
                        found = node.membership
                        break
                    if not node.cut_off and now >= deadline:
                        self._give_up(member, now, timeout)
                self._post(member, out)
                if node.cut_off:
                    self._disconnect(node)
                    raise errors.CutOffError(_start_again(node.cut_off))
                with member.changed:
                    member.changed.wait(_TICK_SECONDS)
        finally:
            with member.changed:
                node.end()
        self._post(member, out)
        self._apply(found, set(processes) - set(found.members))
        return found

    def waiting(self, group: str) -> int:
        """Return the number of processes that wait at this process to join that group."""
        return len(self.rendezvous.wait_list.of(group))

    def shrink(
        self, name: str, processes: tuple[int, ...], timeout: float
    ) -> tuple[str, tuple[int, ...]]:
        """Return the name and the processes of the shrunk group, the same on all its members.

        Args:
          name: the name of the communicator that shrinks.
          processes: its processes.
          timeout: seconds to wait for the others.
        """
        found = self.change(name, processes, None, timeout)
        return _name(original_name(name), found), found.members

    def admit(
        self,
        comm: Group,
        group: str,
        make: Callable[[str, tuple[int, ...]], Any],
        timeout: float,
    ) -> Any:
        """Add the processes that wait at any member to the group; return `comm` if none waits.

        All members must call it. The first member decides which processes join, and numbers them.

        Args:
          comm: the current communicator.
          group: the name of the group that waiting processes requested.
          make: makes the communicator from its name and processes.
          timeout: seconds to wait for the others.
        """
        state, rendezvous = self.state, self.rendezvous

        def decide(proposals: Mapping[int, Any]) -> Any:
            if len(proposals) < comm.size:
                return None
            requests = {
                each["id"]: each for proposal in proposals.values() for each in proposal["joining"]
            }
            # Members may know different counts, if an earlier leader died before all members got
            # its decision. Numbers are never reused, so take the largest.
            first = max(proposal["processes"] for proposal in proposals.values())
            numbers = range(first, first + len(requests))
            requests_in_order = [requests[each] for each in sorted(requests)]
            return {"processes": list(numbers), "first": first, "requests": requests_in_order}

        waiting = {each.message["id"]: each for each in rendezvous.wait_list.of(group)}
        proposal = {
            "processes": state.processes,
            "joining": [each.message for each in waiting.values()],
        }
        try:
            name = f"who joins {comm.name}"
            found = rendezvous.agree_in(comm, name, proposal, decide, timeout, state.why_gone)
        except NoDecision as error:
            raise errors.InitializationError(
                f"the members of {comm.name!r} (processes {list(comm.processes)}) must all call "
                f"admit(), but {error} (after {timeout:g} s at most)."
            ) from None
        if not found["requests"]:
            return comm
        membership = self.change(comm.name, comm.processes, found, timeout)
        grown = make(_name(original_name(comm.name), membership), membership.members)
        if not membership.detail:
            # Another member's value was decided, without the joining processes: they keep waiting.
            return grown
        # After this exchange all members accept messages of the joined processes.
        state.share(comm, (), timeout)
        for number, request in enumerate(
            membership.detail["requests"], int(membership.detail["first"])
        ):
            if request["id"] in waiting:
                _accept(waiting[request["id"]], number, state, grown)
        return grown

    def _give_up(self, member: _Member, now: float, timeout: float) -> None:
        node = member.node
        waits_for = node.waits_for(now)
        if node.lacks_majority(now):
            return node.leave(f"{waits_for}, and may still run (after {timeout:g} s)")
        raise errors.InitializationError(
            f"the members of {member.group!r} should agree on the next membership, but {waits_for} "
            f"(after {timeout:g} s). All members must call shrink(), unless sync calls it."
        )

    def _apply(self, membership: Membership, dropped: set[int]) -> None:
        core, join = engine.load(), membership.detail
        if join:
            _add(self.state, int(join["first"]), join["requests"])
        for process in dropped:
            core.set_failed(process, f"rank {process} of the world is no longer a member")
        core.forget_reports()

    # --- Messages ------------------------------------------------------------------------------

    def _post(self, member: _Member, out: Outgoing) -> None:
        for process, message in out:
            self.rendezvous.post(process, {"group": member.group, **message})

    def _receive(self, source: int, message: Message) -> None:
        group = str(message["group"])
        with self._lock:
            member = self._members.get(group)
        if member is None:  # this process may create the communicator later
            alive = {"kind": "alive", "term": message["term"], "group": group}
            if message["kind"] in ("ready", "prepare"):
                self.rendezvous.post(source, alive)
            return
        with member.changed:
            was_cut_off = member.node.cut_off
            out = member.node.receive(time.monotonic(), source, message)
            member.changed.notify_all()
            is_cut_off = bool(member.node.cut_off) and not was_cut_off
        self._post(member, out)
        if is_cut_off:
            self._disconnect(member.node)

    def _disconnect(self, node: Node) -> None:
        """End operations with the other members, which continue without this process."""
        for process in node.membership.members:
            if process != self.state.process:
                engine.load().set_failed(process, node.cut_off)

    def _refuse(self, process: int) -> None:
        with self._lock:
            members = list(self._members.values())
        for member in members:
            with member.changed:
                member.node.refuse(process)


def _start_again(why: str) -> str:
    return f"{why}. Start this process again, and let it join (jaxccomp.init(join=...))."


def _add(state: World, first: int, requests: Sequence[dict[str, Any]]) -> None:
    """Add processes from number ``first`` on; earlier numbers without a process count as gone."""
    rendezvous, peers, core = state.out_of_band, state.peers, engine.load()
    assert isinstance(rendezvous, Rendezvous) and peers is not None
    unknown = first - state.processes
    rows = [_UNKNOWN] * unknown + [peer_info.Row(*map(int, each["row"])) for each in requests]
    workers = [b""] * unknown + [ucx.unseal(each["worker"], rendezvous.derive) for each in requests]
    core.add_processes(workers)
    for process in range(state.processes, first):
        core.set_failed(process, f"rank {process} of the world never joined")
    state.processes += len(workers)
    peers.rows += rows
    peers.workers += workers
    rendezvous.addresses += [None] * unknown + [as_address(each["address"]) for each in requests]
    set_hosts(core, state, peers.rows)


def _accept(request: JoinRequest, number: int, state: World, comm: Any) -> None:
    rendezvous, peers = state.out_of_band, state.peers
    assert isinstance(rendezvous, Rendezvous) and peers is not None
    known = [each in comm.processes for each in range(state.processes)]
    request.answer(
        {
            "accepted": {
                "process": number,
                "name": comm.name,
                "order": comm.order,
                "members": list(comm.processes),
                "salt": peers.salt.hex(),
                "rows": [list(row) for row in peers.rows],
                "workers": [
                    ucx.seal(worker, rendezvous.derive) if lives else None
                    for worker, lives in zip(peers.workers, known, strict=True)
                ],
                "addresses": [
                    each if lives else None
                    for each, lives in zip(rendezvous.addresses, known, strict=True)
                ],
            }
        }
    )

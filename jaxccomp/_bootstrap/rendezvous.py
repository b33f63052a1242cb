"""Rendezvous of processes, without MPI and without ``jax.distributed``.

Each process listens at a port. All connect first to that of process 0, the *coordinator*, and learn
where the others listen; from then on any of them may end. The first member of a group that lives
leads what its members agree on, and a process that wants to join may ask anybody.

Whoever connects shows that it has the job's secret, and is shown the same
(``multiprocessing.connection``: a challenge and its HMAC, both ways), before anything is read. What
is read then is JSON of a bounded size.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

import numpy as np

from jaxccomp import errors
from jaxccomp._bootstrap.agreement import Decide, NoDecision, ProposalRejected, Rounds
from jaxccomp._bootstrap.connections import (
    HANDSHAKE_SECONDS,
    RETRY_SECONDS,
    SocketAddress,
    connect,
    receive,
    receive_by,
    send,
    time_limited,
)
from jaxccomp._bootstrap.wait_list import WaitList
from jaxccomp._bootstrap.world import Group
from jaxccomp._native.version import __version__

_MOST_UNAUTHENTICATED = 64  # connections
_BACKLOG = 512
_PROBE_SECONDS = 1.0  # for a process that may have ended to answer
_ADDRESSES = "addresses with jaxccomp "


class Rendezvous:
    """This process's part of it: a server, and a client of the others'.

    Args:
      host: the address to listen on, and on no other.
      port: 0 for any.
      secret: of the job.
    """

    def __init__(self, host: str, port: int, secret: bytes):
        self._secret = secret
        self._rounds = Rounds()
        self._shared: dict[str, int] = {}  # how often, by name
        self._unauthenticated = threading.BoundedSemaphore(_MOST_UNAUTHENTICATED)
        self._ends = False
        self.wait_list = WaitList()
        # Where all processes listen; None: it has gone for good.
        self.addresses: list[SocketAddress | None] = []
        self.process: int | None = None  # this one's number, when it is known
        self.why_gone: Callable[[Sequence[int]], str] = lambda processes: ""  # World's
        self.why_refused: Callable[[dict[str, Any]], str] = lambda request: ""
        # What a member hears at once that proposes this, by the round's name; None: the decision.
        self.answer_alone: Callable[[str, int, Any], Any] = lambda name, member, proposal: None
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise errors.InitializationError(
                f"this process cannot listen on {host}:{port} ({error}): name an address of this "
                "host, and a port that nobody uses."
            ) from None
        self.address: SocketAddress = self._socket.getsockname()[:2]
        threading.Thread(target=self._listen, name="jaxccomp-rendezvous", daemon=True).start()

    # --- as a client --------------------------------------------------------------------------

    def exchange_addresses(
        self, rank: int, size: int, coordinator: SocketAddress, timeout: float
    ) -> None:
        """Learns where all processes listen; called by all of them, 0 being the coordinator."""
        name = f"{_ADDRESSES}{__version__}"
        proposal = [size, *self.address]

        def decide(proposals: Mapping[int, Any]) -> Any:
            sizes = {each[0] for each in proposals.values()}
            if sizes != {size} or max(proposals) >= size:
                return {"refused": f"processes say that there are {sorted(sizes)} of them"}
            if len(proposals) < size:
                return None
            return {"addresses": [proposals[each][1:] for each in range(size)]}

        deadline = time.monotonic() + timeout
        try:
            if rank == 0:
                found = self._rounds.lead(name, rank, proposal, decide, deadline)
            else:
                found = self._propose(coordinator, name, rank, proposal, deadline)
        except NoDecision as error:
            raise errors.InitializationError(
                f"{size} processes should meet at {coordinator[0]}:{coordinator[1]}, but after "
                f"{timeout:g} s {error}. Start jaxccomp.init() on all of them with the same "
                "coordinator, size and secret and the same version of jaxccomp, and see that this "
                "port is open between the hosts."
            ) from None
        if "refused" in found:
            raise errors.InitializationError(
                f"{found['refused']}: give all processes the same size= and each its own rank=."
            )
        self.addresses = [(str(host), int(port)) for host, port in found["addresses"]]

    def share(
        self, members: Sequence[int], rank: int, name: str, row: Sequence[int], timeout: float
    ) -> np.ndarray:
        """All members' rows of integers, in the members' order, on every member.

        The first member leads.

        Raises:
          InitializationError: with the processes that have not come, or are gone.
        """
        number = self._shared.get(name, 0)
        mine = [int(each) for each in row]

        def decide(proposals: Mapping[int, Any]) -> Any:
            if len(proposals) < len(members):
                return None
            return [proposals.get(each) for each in range(len(members))]

        try:
            rows = self.agree(
                f"{name} {number} of {list(members)}",
                members[0],
                rank,
                mine,
                decide,
                timeout,
                lambda: self.why_gone(members),
            )
            table = np.array(rows, np.int64).reshape(len(members), len(mine))
        except NoDecision as error:
            raise errors.InitializationError(
                f"the members of {name!r} (processes {list(members)}) must all take part in this, "
                f"but {error} (after {timeout:g} s at most; the option init_timeout_seconds)."
            ) from None
        except (ValueError, TypeError, OverflowError):
            raise errors.InitializationError(
                f"what the members of {name!r} have said does not fit together: all must call "
                "the same functions on their communicators in the same order."
            ) from None
        self._shared[name] = number + 1
        return table

    def agree(
        self,
        name: str,
        leader: int,
        member: int,
        proposal: Any,
        decide: Decide,
        timeout: float,
        abort_reason: Callable[[], str],
    ) -> Any:
        """What the leader decides from all members' proposals; the same on all that get it.

        Where the leader dies meanwhile, some may have it and others not.

        Args:
          name: of what is decided; the same on all members.
          leader: the process.
          member: what this one is called there.
          proposal: this one's.
          decide: as `Rounds.lead` has it; only the leader's is called.
          timeout: seconds.
          abort_reason: why there will be no decision; empty as long as there may.

        Raises:
          NoDecision: where there is none.
        """
        name = _with_version(name)
        deadline = time.monotonic() + timeout
        address = self.addresses[leader]
        if address is None:
            raise NoDecision(f"process {leader} has gone")
        if address == self.address:
            return self._rounds.lead(name, member, proposal, decide, deadline, abort_reason)
        return self._propose(address, name, member, proposal, deadline, abort_reason)

    def agree_in(
        self,
        comm: Group,
        name: str,
        proposal: Any,
        decide: Decide,
        timeout: float,
        why_gone: Callable[[Sequence[int]], str],
    ) -> Any:
        """As `agree`, by all members of a communicator, by their ranks; its first one leads.

        Args:
          comm: whose members.
          name: as `agree` has it.
          proposal: likewise.
          decide: likewise.
          timeout: likewise.
          why_gone: why some of these processes will not come; empty as long as all may.
        """
        leader, members = comm.processes[0], comm.processes
        return self.agree(
            name, leader, comm.rank, proposal, decide, timeout, lambda: why_gone(members)
        )

    def keep_deciding(self, name: str, make: Callable[[], Decide]) -> Decide:
        """As `Rounds.keep`, for `agree` with that name, where this process is the leader."""
        return self._rounds.keep(_with_version(name), make)

    def request_join(
        self,
        coordinators: Sequence[SocketAddress],
        group: str,
        request: Callable[[], dict[str, Any]],
        timeout: float,
    ) -> dict[str, Any]:
        """Asks to be taken into a group that exists, and waits until it is.

        Args:
          coordinators: where members listen; the first that answers is asked, and when it ends
            another one.
          group: its name.
          request: what they need to know of this process; called once a member has been reached.
          timeout: seconds to wait.

        Returns:
          The members' answer.
        """
        deadline = time.monotonic() + timeout
        known = [address for address in coordinators if address != self.address]
        trouble = "nobody was there"
        while time.monotonic() < deadline:
            for address in list(known):
                try:
                    with connect(address, self._secret, deadline) as conn:
                        asked = {"kind": "join", "version": __version__, "group": group}
                        send(conn, asked | request())
                        others = map(tuple, receive_by(conn, deadline, lambda: "")["addresses"])
                        known += [each for each in others if each not in (*known, self.address)]
                        return receive_by(conn, deadline, lambda: "")["accepted"]
                except (OSError, EOFError) as error:
                    trouble = f"{address[0]}:{address[1]}: {error}"
                except NoDecision:
                    break
            time.sleep(RETRY_SECONDS)
        raise errors.InitializationError(
            f"no member of group {group!r} took this process in within {timeout:g} s "
            f"(asked at {', '.join(f'{host}:{port}' for host, port in known)}; {trouble}). Members "
            "take in whoever waits when they call Communicator.admit()."
        )

    def may_live(self, process: int) -> bool:
        """Whether that process answers, or is where nobody can know: not where it has ended."""
        address = self.addresses[process]
        if address is None:
            return False
        deadline = time.monotonic() + _PROBE_SECONDS
        try:
            with connect(address, self._secret, deadline) as conn:
                send(conn, {"kind": "probe"})
                # Another one may have its port now.
                return receive_by(conn, deadline, lambda: "")["process"] == process
        except (ConnectionRefusedError, errors.InitializationError):
            return False
        except (OSError, EOFError, NoDecision):
            return True

    def _propose(
        self,
        address: SocketAddress,
        name: str,
        member: int,
        proposal: Any,
        deadline: float,
        abort_reason: Callable[[], str] = lambda: "",
    ) -> Any:
        trouble = f"nobody listens at {address[0]}:{address[1]}"
        while time.monotonic() < deadline:
            if reason := abort_reason():
                raise NoDecision(reason)
            try:
                with connect(address, self._secret, deadline, abort_reason) as conn:
                    said = {"name": name, "member": member, "proposal": proposal}
                    send(conn, {"kind": "proposal", **said})
                    return receive_by(conn, deadline, abort_reason)["decision"]
            except (OSError, EOFError) as error:
                trouble = f"process at {address[0]}:{address[1]} does not answer ({error})"
            time.sleep(RETRY_SECONDS)
        raise NoDecision(trouble)

    # --- as the server ------------------------------------------------------------------------

    def stop(self) -> None:
        """Listens no more."""
        self._ends = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while not self._ends:
            try:
                raw, _ = self._socket.accept()
            except OSError:
                time.sleep(RETRY_SECONDS)
                continue
            if not self._unauthenticated.acquire(blocking=False):
                raw.close()
                continue
            threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        # Whatever goes wrong with one connection concerns nobody else.
        with contextlib.suppress(Exception), contextlib.ExitStack() as handshake:
            handshake.callback(self._unauthenticated.release)
            with time_limited(raw, HANDSHAKE_SECONDS) as (conn, lift_limit):
                connection.deliver_challenge(conn, self._secret)
                connection.answer_challenge(conn, self._secret)
                request = receive(conn)
                lift_limit()
                handshake.close()
                if request["kind"] == "proposal":
                    self._serve_proposal(conn, request)
                elif request["kind"] == "probe":
                    send(conn, {"process": self.process})
                elif request["kind"] == "join":
                    self._serve_join(conn, request)

    def _serve_proposal(self, conn: connection.Connection, request: dict[str, Any]) -> None:
        name, member, proposal = str(request["name"]), int(request["member"]), request["proposal"]
        try:
            decision = self._rounds.follow(
                name,
                member,
                proposal,
                lambda: conn.poll(0),  # it says nothing more, so this is its end
                answer_alone=lambda: self.answer_alone(name, member, proposal),
                unique=name.startswith(_ADDRESSES),
            )
        except ProposalRejected as error:
            send(conn, {"refused": str(error)})
            return
        send(conn, {"decision": decision})

    def _serve_join(self, conn: connection.Connection, request: dict[str, Any]) -> None:
        if self.process is None:
            return  # it waits itself: the other one asks elsewhere
        theirs = request["version"]
        refused = f"the group has jaxccomp {__version__}, not {theirs}"
        if theirs == __version__:
            refused = self.why_refused(request)
        if refused:
            send(conn, {"refused": refused})
            return
        send(conn, {"addresses": [address for address in self.addresses if address is not None]})
        with self.wait_list.added(request) as waiting:
            while not waiting.answered.wait(RETRY_SECONDS):
                if conn.poll(0):
                    return
        send(conn, waiting.reply)


def _with_version(name: str) -> str:
    return f"{name} with jaxccomp {__version__}"

"""Rendezvous of processes, without MPI and without ``jax.distributed``.

Each process listens at a port. At the start, all connect to process 0, the *coordinator*, and get
the addresses of the others; from then on any process may end. The first living member of a group
leads its agreements, and a process that wants to join may ask any member.

Both ends of a connection prove that they know the job's secret before a message is read
(`connections.py`). Connections between members are kept, and reused for later requests. One thread
accepts connections and does all handshakes. It limits the number of unauthenticated connections,
and closes connections without a first byte within a second.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxccomp import errors
from jaxccomp._elastic.agreement import Decide, NoDecision, ProposalRejected, Rounds, WaitList
from jaxccomp._elastic.connections import (
    HANDSHAKE_SECONDS,
    RETRY_SECONDS,
    Connection,
    ServerHandshake,
    SocketAddress,
    connect,
    mac,
    open_connection,
    receive_by,
)
from jaxccomp._native.version import __version__
from jaxccomp._runtime.world import Group

_MAX_UNAUTHENTICATED = 256  # connections
_MAX_OF_ADDRESS = 64  # unauthenticated connections from one address
_FIRST_BYTE_SECONDS = 1.0
_BACKLOG = 4096  # the system's limit is often lower
_MAX_IDLE = 4  # idle connections to one member
_MAX_POSTS = 256  # messages to one process that wait for a connection
_POST_SECONDS = 2.0  # to connect, for a posted message
_IDLE_SECONDS = 600.0  # after which an idle posting thread ends
_ADDRESSES = "addresses with jaxccomp "


class Rendezvous:
    """This process's server, and its client connections to the others.

    Args:
      host: the only address to listen on.
      port: 0 for any.
      secret: the job's secret.
    """

    def __init__(self, host: str, port: int, secret: bytes):
        self._secret = secret
        self._rounds = Rounds()
        self._shared: dict[str, int] = {}  # number of `share` calls by name
        self._ends = False
        self._idle: dict[SocketAddress, list[Connection]] = {}
        self._posts: dict[int, _Posts] = {}
        self._lock = threading.Lock()
        # Connections closed before they were authenticated, by reason.
        self.closed_unauthenticated = {"silent": 0, "evicted": 0, "refused": 0}
        self.wait_list = WaitList()
        # Listening addresses of all processes; None: the process has left or ended.
        self.addresses: list[SocketAddress | None] = []
        self.process: int | None = None  # this process's number, once known
        self.why_gone: Callable[[Sequence[int]], str] = lambda processes: ""  # World's
        self.why_refused: Callable[[dict[str, Any]], str] = lambda request: ""
        # Called with a message that another process posted, and with a process that has refused or
        # closed a connection.
        self.on_posted: Callable[[int, dict[str, Any]], None] = lambda source, message: None
        self.on_refused: Callable[[int], None] = lambda process: None
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise errors.InitializationError(
                f"this process cannot listen on {host}:{port} ({error}): name an address of this "
                "host, and a free port."
            ) from None
        self.address: SocketAddress = self._socket.getsockname()[:2]
        threading.Thread(target=self._listen, name="jaxccomp-rendezvous", daemon=True).start()

    # --- as a client --------------------------------------------------------------------------

    def exchange_addresses(
        self, rank: int, size: int, coordinator: SocketAddress, timeout: float
    ) -> None:
        """Exchange the listening addresses of all processes; all call it, process 0 coordinates."""
        name = f"{_ADDRESSES}{__version__}"
        proposal = [size, *self.address]

        def decide(proposals: Mapping[int, Any]) -> Any:
            sizes = {each[0] for each in proposals.values()}
            if sizes != {size} or max(proposals) >= size:
                return {"refused": f"the processes were started with size {sorted(sizes)}"}
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
                "coordinator, size and secret and the same version of jaxccomp, and check that "
                "this port is open between the hosts."
            ) from None
        if "refused" in found:
            raise errors.InitializationError(
                f"{found['refused']}: give all processes the same size= and each its own rank=."
            )
        self.addresses = [(str(host), int(port)) for host, port in found["addresses"]]

    def share(
        self, members: Sequence[int], rank: int, name: str, row: Sequence[int], timeout: float
    ) -> np.ndarray:
        """Allgather rows of integers, in the members' order. The first member leads.

        Raises:
          InitializationError: names the processes that have not come, or are gone.
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
                f"the members of {name!r} (processes {list(members)}) must all take part in this "
                f"call, but {error} (after {timeout:g} s at most; the option init_timeout_seconds)."
            ) from None
        except (ValueError, TypeError, OverflowError):
            raise errors.InitializationError(
                f"the members of {name!r} have sent rows of different lengths or invalid rows: all "
                "must call the same functions on their communicators in the same order."
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
        """Return the leader's decision on the members' proposals.

        All members that get a decision get the same one. If the leader dies meanwhile, some members
        may get no decision.

        Args:
          name: the name of the round, the same on all members.
          leader: the leader's process number.
          member: this process's member number in the round.
          proposal: this process's proposal.
          decide: see `Rounds.lead`; only the leader calls it.
          timeout: seconds.
          abort_reason: returns why there will be no decision; empty while there may be one.

        Raises:
          NoDecision: when there is no decision.
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
        """Like `agree`, for the ranks of a communicator; its first rank leads.

        Args:
          comm: the communicator.
          name: see `agree`.
          proposal: see `agree`.
          decide: see `agree`.
          timeout: see `agree`.
          why_gone: returns why some of these processes will not come; empty while all may.
        """
        leader, members = comm.processes[0], comm.processes
        return self.agree(
            name, leader, comm.rank, proposal, decide, timeout, lambda: why_gone(members)
        )

    def keep_deciding(self, name: str, make: Callable[[], Decide]) -> Decide:
        """Like `Rounds.keep`, for `agree` with that name when this process leads."""
        return self._rounds.keep(_with_version(name), make)

    def request_join(
        self,
        coordinators: Sequence[SocketAddress],
        group: str,
        request: Callable[[], dict[str, Any]],
        timeout: float,
    ) -> dict[str, Any]:
        """Ask to join an existing group, and wait until this process is admitted.

        Args:
          coordinators: addresses of members. The first member that answers gets the request; if
            that member ends, the next one gets it.
          group: the group's name.
          request: returns this process's data for the members; called when a member is reached.
          timeout: seconds to wait.

        Returns:
          The members' answer.
        """
        deadline = time.monotonic() + timeout
        known = [address for address in coordinators if address != self.address]
        last_error = "no process answered"
        while time.monotonic() < deadline:
            for address in list(known):
                try:
                    with connect(address, self._secret, deadline) as conn:
                        request_message = {"kind": "join", "version": __version__, "group": group}
                        conn.send(request_message | request())
                        others = map(tuple, receive_by(conn, deadline, lambda: "")["addresses"])
                        known += [each for each in others if each not in (*known, self.address)]
                        return receive_by(conn, deadline, lambda: "")["accepted"]
                except (OSError, EOFError) as error:
                    last_error = f"{address[0]}:{address[1]}: {error}"
                except NoDecision:
                    break
            time.sleep(RETRY_SECONDS)
        raise errors.InitializationError(
            f"no member of group {group!r} admitted this process within {timeout:g} s (asked at "
            f"{', '.join(f'{host}:{port}' for host, port in known)}; {last_error}). Members "
            "admit waiting processes when they call Communicator.admit()."
        )

    def post(self, process: int, message: dict[str, Any]) -> None:
        """Send a one-way message to another process; the message may be lost.

        Messages from one process to another are sent on one connection, in order.
        """
        with self._lock:
            posts = self._posts.get(process)
            if posts is None:
                posts = self._posts[process] = _Posts(self, process)
        posts.add(message)

    def derive(self, purpose: bytes, *parts: bytes) -> bytes:
        """Derive 32 bytes from the job's secret and the parts, the same on all processes."""
        return mac(self._secret, purpose, *parts)

    def connect_to(self, process: int) -> Connection:
        """Open a separate connection for the messages posted to that process."""
        address = self.addresses[process] if process < len(self.addresses) else None
        if address is None:
            raise OSError(f"process {process} has gone")
        return open_connection(address, self._secret, time.monotonic() + _POST_SECONDS)

    @contextlib.contextmanager
    def _leased(
        self, address: SocketAddress, deadline: float, abort_reason: Callable[[], str]
    ) -> Iterator[Connection]:
        """Lease an idle or new connection, which is kept unless the ``with`` block fails."""
        conn = None
        while conn is None:
            with self._lock:
                idle = self._idle.get(address, [])
                kept = idle.pop() if idle else None
            if kept is None:
                conn = open_connection(address, self._secret, deadline, abort_reason)
            elif kept.poll():
                kept.close()  # the other side has closed it
            else:
                conn = kept
        try:
            yield conn
        except BaseException:
            conn.close()
            raise
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if len(idle) < _MAX_IDLE and not self._ends:
                idle.append(conn)
                return
        conn.close()

    def _propose(
        self,
        address: SocketAddress,
        name: str,
        member: int,
        proposal: Any,
        deadline: float,
        abort_reason: Callable[[], str] = lambda: "",
    ) -> Any:
        last_error = f"no process listens at {address[0]}:{address[1]}"
        while time.monotonic() < deadline:
            if reason := abort_reason():
                raise NoDecision(reason)
            try:
                with self._leased(address, deadline, abort_reason) as conn:
                    said = {"name": name, "member": member, "proposal": proposal}
                    conn.send({"kind": "proposal", **said})
                    return receive_by(conn, deadline, abort_reason)["decision"]
            except (OSError, EOFError) as error:
                last_error = f"process at {address[0]}:{address[1]} does not answer ({error})"
            time.sleep(RETRY_SECONDS)
        raise NoDecision(last_error)

    # --- as the server ------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop listening, and close idle connections."""
        self._ends = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for conn in [each for idle in self._idle.values() for each in idle]:
                conn.close()
            self._idle.clear()

    def _listen(self) -> None:
        waiting: dict[int, ServerHandshake] = {}
        self._socket.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while not self._ends:
                try:
                    for key, _ in selector.select(RETRY_SECONDS):
                        if key.fileobj is self._socket:
                            self._accept(selector, waiting)
                        elif (shake := waiting.get(key.fd)) is not None:
                            self._advance(selector, waiting, shake)
                    self._close_late(selector, waiting)
                except (OSError, ValueError):  # the socket is closed, or no descriptor is left
                    if not self._ends:
                        self._evict(selector, waiting, waiting.values())
                        time.sleep(RETRY_SECONDS)
            for shake in waiting.values():
                shake.raw.close()

    def _accept(
        self, selector: selectors.BaseSelector, waiting: dict[int, ServerHandshake]
    ) -> None:
        """Accept a bounded number of connections, so that open handshakes progress in between."""
        for _ in range(_MAX_OF_ADDRESS):
            try:
                raw, (host, *_) = self._socket.accept()
            except BlockingIOError:
                return
            raw.setblocking(False)
            of_host = [each for each in waiting.values() if each.host == host]
            if len(of_host) >= _MAX_OF_ADDRESS:
                self._evict(selector, waiting, of_host)
            elif len(waiting) >= _MAX_UNAUTHENTICATED:
                self._evict(selector, waiting, waiting.values())
            shake = waiting[raw.fileno()] = ServerHandshake(raw, host, self._secret)
            selector.register(raw, selectors.EVENT_READ)
            self._advance(selector, waiting, shake)

    def _evict(
        self,
        selector: selectors.BaseSelector,
        waiting: dict[int, ServerHandshake],
        among: Iterable[ServerHandshake],
    ) -> None:
        """Close the oldest silent connection, or the oldest one if none is silent."""
        oldest = min(among, key=lambda each: (each.has_spoken, each.accepted_at), default=None)
        if oldest is not None:
            self._drop(selector, waiting, oldest, "evicted")

    def _close_late(
        self, selector: selectors.BaseSelector, waiting: dict[int, ServerHandshake]
    ) -> None:
        now = time.monotonic()
        for each in list(waiting.values()):
            limit = HANDSHAKE_SECONDS if each.has_spoken else _FIRST_BYTE_SECONDS
            if now - each.accepted_at > limit:
                self._drop(selector, waiting, each, "silent")

    def _drop(
        self,
        selector: selectors.BaseSelector,
        waiting: dict[int, ServerHandshake],
        shake: ServerHandshake,
        reason: str,
    ) -> None:
        self.closed_unauthenticated[reason] += 1
        selector.unregister(shake.raw)
        del waiting[shake.raw.fileno()]
        shake.raw.close()

    def _advance(
        self,
        selector: selectors.BaseSelector,
        waiting: dict[int, ServerHandshake],
        shake: ServerHandshake,
    ) -> None:
        try:
            conn = shake.advance()
        except (OSError, EOFError):
            return self._drop(selector, waiting, shake, "refused")
        if conn is not None:
            selector.unregister(shake.raw)
            del waiting[shake.raw.fileno()]
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn: Connection) -> None:
        # An error on one connection must not affect others.
        with contextlib.suppress(Exception), conn:
            while not self._ends:
                request = conn.receive()
                if request["kind"] == "proposal":
                    self._serve_proposal(conn, request)
                elif request["kind"] == "posted":
                    self.on_posted(int(request["source"]), request["message"])
                elif request["kind"] == "join":
                    return self._serve_join(conn, request)
                else:
                    return

    def _serve_proposal(self, conn: Connection, request: dict[str, Any]) -> None:
        name, member, proposal = str(request["name"]), int(request["member"]), request["proposal"]
        try:
            decision = self._rounds.follow(
                name,
                member,
                proposal,
                conn.poll,  # true when the client has ended: it sends nothing before the decision
                unique=name.startswith(_ADDRESSES),
            )
        except ProposalRejected as error:
            conn.send({"refused": str(error)})
            return
        conn.send({"decision": decision})

    def _serve_join(self, conn: Connection, request: dict[str, Any]) -> None:
        if self.process is None:
            return  # this process is no member yet: the client asks another process
        theirs = request["version"]
        refused = f"the group has jaxccomp {__version__}, not {theirs}"
        if theirs == __version__:
            refused = self.why_refused(request)
        if refused:
            conn.send({"refused": refused})
            return
        conn.send({"addresses": [address for address in self.addresses if address is not None]})
        with self.wait_list.added(request) as waiting:
            while not waiting.answered.wait(RETRY_SECONDS):
                if conn.poll():  # the client has ended: it sends nothing before the reply
                    return
        conn.send(waiting.reply)


def _with_version(name: str) -> str:
    return f"{name} with jaxccomp {__version__}"


class _Posts:
    """The messages posted to one process, and the thread that sends them.

    Args:
      rendezvous: of this process.
      process: the receiver's number.
    """

    def __init__(self, rendezvous: Rendezvous, process: int):
        self._rendezvous, self._process = rendezvous, process
        self._messages: deque[dict[str, Any]] = deque(maxlen=_MAX_POSTS)
        self._came = threading.Condition()
        self._running = False

    def add(self, message: dict[str, Any]) -> None:
        with self._came:
            self._messages.append(message)
            self._came.notify()
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="jaxccomp-posts", daemon=True).start()

    def _run(self) -> None:
        conn = None
        while (message := self._next()) is not None:
            posted = {"kind": "posted", "source": self._rendezvous.process, "message": message}
            for is_new in (False, True):
                try:
                    if conn is not None and not is_new and conn.poll():
                        # The receiver sends nothing on this connection, so it has ended.
                        raise EOFError("the connection has ended")
                    if conn is None:
                        conn = self._rendezvous.connect_to(self._process)
                    conn.send(posted)
                    break
                except (OSError, EOFError, errors.InitializationError) as error:
                    if conn is not None:
                        conn.close()
                    was_open, conn = conn is not None, None
                    if was_open and not is_new:
                        continue
                    # The consensus repeats unanswered messages, so these may be lost.
                    self._messages.clear()
                    if not isinstance(error, TimeoutError):
                        self._rendezvous.on_refused(self._process)
                    break
        if conn is not None:
            conn.close()

    def _next(self) -> dict[str, Any] | None:
        """Return the next message; None when the thread ends after `_IDLE_SECONDS`."""
        with self._came:
            if not self._came.wait_for(lambda: self._messages, _IDLE_SECONDS):
                self._running = False
                return None
            return self._messages.popleft()

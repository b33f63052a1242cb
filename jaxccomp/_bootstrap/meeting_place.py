"""A port of this process where others meet it, without MPI and without ``jax.distributed``.

Each process listens. All meet first at that of process 0, the *coordinator*, and learn where the
others listen; from then on any of them may end. Rows of integers are exchanged at the port of the
first member of a group, and a process that wants to join may ask anybody.

Whoever connects shows that it has the job's secret, and is shown the same
(``multiprocessing.connection``: a challenge and its HMAC, both ways), before anything is read. What
is read then is JSON of a bounded size.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import AuthenticationError, connection
from typing import Any

import numpy as np

from jaxccomp import errors
from jaxccomp._bootstrap.rooms import Disagreement, Missing, Rooms
from jaxccomp._native.version import __version__

Place = tuple[str, int]  # address and port

# So long a connection may take to show its secret and say what it wants.
_GREETING_SECONDS = 10
_MOST_STRANGERS = 64  # who have not
_MOST_BYTES = 16 << 20  # of a message
_RETRY_SECONDS = 0.05
_BACKLOG = 512


class MeetingPlace:
    """This process's.

    Args:
      host: the address to listen on, and on no other.
      port: 0 for any.
      secret: of the job.
    """

    def __init__(self, host: str, port: int, secret: bytes):
        self._secret = secret
        self._rooms = Rooms()
        self._shared: dict[str, int] = {}  # how often, by name
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._ends = False
        self.applicants = Applicants()
        self.places: list[Place | None] = []  # of all processes; None: it has gone for good
        self.find_gone: Callable[[], dict[int, tuple[str, bool, bool]]] = dict
        self.why_refused: Callable[[dict[str, Any]], str] = lambda request: ""
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise errors.InitializationError(
                f"this process cannot listen on {host}:{port} ({error}): name an address of this "
                "host, and a port that nobody uses."
            ) from None
        self.place: Place = self._socket.getsockname()[:2]
        threading.Thread(target=self._listen, name="jaxccomp-meeting", daemon=True).start()

    # --- as a client --------------------------------------------------------------------------

    def start(self, rank: int, size: int, coordinator: Place, timeout: float) -> None:
        """Learns where all processes listen; called by all of them, 0 being the coordinator."""
        name = f"start of {size} processes with jaxccomp {__version__}"
        deadline = time.monotonic() + timeout
        try:
            if rank == 0:
                rows = self._rooms.gather(name, size, rank, [*self.place], deadline, lambda: "")
            else:
                request = {"kind": "row", "name": name, "size": size, "rank": rank}
                rows = self._ask(coordinator, request | {"row": [*self.place]}, deadline)
        except Missing as error:
            raise errors.InitializationError(
                f"{size} processes should meet at {coordinator[0]}:{coordinator[1]}, but after "
                f"{timeout:g} s {error}. Start jaxccomp.init() on all of them with the same "
                "coordinator, size and secret, and see that this port is open between the hosts."
            ) from None
        self.places = [(str(host), int(port)) for host, port in rows]

    def share(
        self, members: Sequence[int], rank: int, name: str, row: Sequence[int], timeout: float
    ) -> np.ndarray:
        """All members' rows of integers, in the members' order, on every member.

        They meet at the port of the first member.

        Raises:
          InitializationError: with the processes that have not come, or are gone.
        """
        number = self._shared.get(name, 0)
        room = f"{name} {number} of {list(members)} with jaxccomp {__version__}"
        deadline = time.monotonic() + timeout
        mine = [int(each) for each in row]

        def why_not() -> str:
            gone = self.find_gone()
            return "; ".join(gone[each][0] for each in members if each in gone)

        try:
            if rank == 0:
                rows = self._rooms.gather(room, len(members), rank, mine, deadline, why_not)
            else:
                request = {"kind": "row", "name": room, "size": len(members), "rank": rank}
                place = self.places[members[0]]
                if place is None:
                    raise Missing(f"process {members[0]} has gone")
                rows = self._ask(place, request | {"row": mine}, deadline, why_not)
            table = np.array(rows, np.int64).reshape(len(members), len(mine))
        except Missing as error:
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

    def apply(
        self, coordinators: Sequence[Place], request: dict[str, Any], timeout: float
    ) -> dict[str, Any]:
        """Asks to be taken into a group that exists, and waits until it is.

        Args:
          coordinators: where members listen; the first that answers is asked, and when it ends
            another one.
          request: what they need to know of this process.
          timeout: seconds to wait.

        Returns:
          The members' answer.
        """
        deadline = time.monotonic() + timeout
        known = list(coordinators)
        trouble = "nobody was there"
        while time.monotonic() < deadline:
            for place in list(known):
                try:
                    with self._connect(place, deadline) as conn:
                        _send(conn, {"kind": "join", "version": __version__, **request})
                        others = _receive_by(conn, deadline, lambda: "")
                        known += [p for p in map(tuple, others["places"]) if p not in known]
                        return _receive_by(conn, deadline, lambda: "")["welcome"]
                except (OSError, EOFError) as error:
                    trouble = f"{place[0]}:{place[1]}: {error}"
                except Missing:
                    break
            time.sleep(_RETRY_SECONDS)
        raise errors.InitializationError(
            f"no member of group {request['group']!r} took this process in within {timeout:g} s "
            f"(asked at {', '.join(f'{host}:{port}' for host, port in known)}; {trouble}). Members "
            "take in whoever waits when they call Communicator.admit()."
        )

    def _ask(
        self,
        place: Place,
        request: dict[str, Any],
        deadline: float,
        why_not: Callable[[], str] = lambda: "",
    ) -> list[list[Any]]:
        trouble = f"nobody listens at {place[0]}:{place[1]}"
        while time.monotonic() < deadline:
            if why := why_not():
                raise Missing(why)
            try:
                with self._connect(place, deadline) as conn:
                    _send(conn, request)
                    return _receive_by(conn, deadline, why_not)["rows"]
            except (OSError, EOFError) as error:
                trouble = f"process at {place[0]}:{place[1]} does not answer ({error})"
            time.sleep(_RETRY_SECONDS)
        raise Missing(trouble)

    @contextlib.contextmanager
    def _connect(self, place: Place, deadline: float) -> Iterator[connection.Connection]:
        left = max(min(deadline - time.monotonic(), _GREETING_SECONDS), 0.01)
        raw = socket.create_connection(place, left)
        raw.settimeout(None)
        with _limited(raw, left) as (conn, no_longer_limited):
            try:
                connection.answer_challenge(conn, self._secret)
                connection.deliver_challenge(conn, self._secret)
            except AuthenticationError:
                raise errors.InitializationError(
                    f"the process at {place[0]}:{place[1]} has another secret: give all processes "
                    "of the job the same one (JAXCCOMP_SECRET), and each job a port of its own."
                ) from None
            no_longer_limited()
            yield conn

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
                time.sleep(_RETRY_SECONDS)
                continue
            if not self._strangers.acquire(blocking=False):
                raw.close()
                continue
            threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        # Whatever goes wrong with one connection concerns nobody else.
        with contextlib.suppress(Exception), contextlib.ExitStack() as greeting:
            greeting.callback(self._strangers.release)
            with _limited(raw, _GREETING_SECONDS) as (conn, no_longer_limited):
                connection.deliver_challenge(conn, self._secret)
                connection.answer_challenge(conn, self._secret)
                request = _receive(conn)
                no_longer_limited()
                greeting.close()
                if request["kind"] == "row":
                    self._serve_row(conn, request)
                elif request["kind"] == "join":
                    self._serve_applicant(conn, request)

    def _serve_row(self, conn: connection.Connection, request: dict[str, Any]) -> None:
        try:
            rows = self._rooms.wait(
                str(request["name"]),
                int(request["size"]),
                int(request["rank"]),
                list(request["row"]),
                lambda: conn.poll(0),  # it says nothing more, so this is its end
            )
        except Disagreement as error:
            _send(conn, {"refused": str(error)})
            return
        _send(conn, {"rows": rows})

    def _serve_applicant(self, conn: connection.Connection, request: dict[str, Any]) -> None:
        theirs = request["version"]
        refused = f"the group has jaxccomp {__version__}, not {theirs}"
        if theirs == __version__:
            refused = self.why_refused(request)
        if refused:
            _send(conn, {"refused": refused})
            return
        _send(conn, {"places": [place for place in self.places if place is not None]})
        with self.applicants.waiting(request) as applicant:
            while not applicant.answered.wait(_RETRY_SECONDS):
                if conn.poll(0):
                    return
        _send(conn, applicant.answer)


class Applicants:
    """Processes that wait here to be taken in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Applicant] = []

    @contextlib.contextmanager
    def waiting(self, request: dict[str, Any]) -> Iterator[Applicant]:
        """One more, for the length of a ``with`` block."""
        applicant = Applicant(request)
        with self._lock:
            self._all.append(applicant)
        try:
            yield applicant
        finally:
            with self._lock:
                self._all.remove(applicant)

    def of(self, group: str) -> list[Applicant]:
        """Those that wait for that group."""
        with self._lock:
            return [each for each in self._all if each.request.get("group") == group]


class Applicant:
    """One of them, until it is answered."""

    def __init__(self, request: dict[str, Any]):
        self.request = request
        self.answer: dict[str, Any] = {}
        self.answered = threading.Event()

    def tell(self, answer: dict[str, Any]) -> None:
        """Answers it."""
        self.answer = answer
        self.answered.set()


@contextlib.contextmanager
def _limited(
    raw: socket.socket, seconds: float
) -> Iterator[tuple[connection.Connection, Callable[[], None]]]:
    """A connection that ends after so long, unless the function beside it is called before."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with raw.dup() as same:
        timer = threading.Timer(seconds, _end, [same])
        timer.daemon = True
        timer.start()
        try:
            with connection.Connection(raw.detach()) as conn:
                yield conn, timer.cancel
        finally:
            timer.cancel()


def _end(raw: socket.socket) -> None:
    with contextlib.suppress(OSError):
        raw.shutdown(socket.SHUT_RDWR)


def _send(conn: connection.Connection, message: dict[str, Any]) -> None:
    conn.send_bytes(json.dumps(message).encode())


def _receive(conn: connection.Connection) -> dict[str, Any]:
    message = json.loads(conn.recv_bytes(_MOST_BYTES))
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message


def _receive_by(
    conn: connection.Connection, deadline: float, why_not: Callable[[], str]
) -> dict[str, Any]:
    while not conn.poll(_RETRY_SECONDS):
        if why := why_not():
            raise Missing(why)
        if time.monotonic() > deadline:
            raise Missing("others have not come")
    message = _receive(conn)
    if "refused" in message:
        raise errors.InitializationError(f"refused: {message['refused']}.")
    return message

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
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

import numpy as np

from jaxccomp import errors
from jaxccomp._bootstrap.applicants import Applicants
from jaxccomp._bootstrap.connections import (
    GREETING_SECONDS,
    RETRY_SECONDS,
    Place,
    connect,
    limited,
    receive,
    receive_by,
    send,
)
from jaxccomp._bootstrap.rooms import Decides, Disagreement, Missing, Rooms
from jaxccomp._native.version import __version__

_MOST_STRANGERS = 64  # who have not shown the secret and said what they want
_BACKLOG = 512
_PROBE_SECONDS = 1.0  # for a process that may have ended to answer
_START = "start with jaxccomp "


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
        self.process: int | None = None  # this one's number, when it is known
        self.why_gone: Callable[[Sequence[int]], str] = lambda processes: ""  # World's
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
        name = f"{_START}{__version__}"
        word = [size, *self.place]

        def all_places(words: Mapping[int, Any]) -> Any:
            sizes = {each[0] for each in words.values()}
            if sizes != {size} or max(words) >= size:
                return {"refused": f"processes say that there are {sorted(sizes)} of them"}
            if len(words) < size:
                return None
            return {"places": [words[each][1:] for each in range(size)]}

        deadline = time.monotonic() + timeout
        try:
            if rank == 0:
                found = self._rooms.lead(name, rank, word, all_places, deadline)
            else:
                found = self._ask(coordinator, name, rank, word, deadline)
        except Missing as error:
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
        self.places = [(str(host), int(port)) for host, port in found["places"]]

    def share(
        self, members: Sequence[int], rank: int, name: str, row: Sequence[int], timeout: float
    ) -> np.ndarray:
        """All members' rows of integers, in the members' order, on every member.

        They meet at the first member's.

        Raises:
          InitializationError: with the processes that have not come, or are gone.
        """
        number = self._shared.get(name, 0)
        mine = [int(each) for each in row]

        def all_rows(words: Mapping[int, Any]) -> Any:
            if len(words) < len(members):
                return None
            return [words.get(each) for each in range(len(members))]

        try:
            rows = self.decide(
                f"{name} {number} of {list(members)}",
                members[0],
                rank,
                mine,
                all_rows,
                timeout,
                lambda: self.why_gone(members),
            )
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

    def decide(
        self,
        name: str,
        leader: int,
        member: int,
        word: Any,
        decides: Decides,
        timeout: float,
        why_not: Callable[[], str],
    ) -> Any:
        """What the leader makes of all members' words; the same on all that get it.

        Where the leader dies meanwhile, some may have it and others not.

        Args:
          name: of what is decided; the same on all members.
          leader: the process.
          member: what this one is called there.
          word: its own.
          decides: as `Rooms.lead` has it; only the leader's is called.
          timeout: seconds.
          why_not: why there will be no decision; empty as long as there may.

        Raises:
          Missing: where there is none.
        """
        name = f"{name} with jaxccomp {__version__}"
        deadline = time.monotonic() + timeout
        place = self.places[leader]
        if place is None:
            raise Missing(f"process {leader} has gone")
        if place == self.place:
            return self._rooms.lead(name, member, word, decides, deadline, why_not)
        return self._ask(place, name, member, word, deadline, why_not)

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
        known = [place for place in coordinators if place != self.place]
        trouble = "nobody was there"
        while time.monotonic() < deadline:
            for place in list(known):
                try:
                    with connect(place, self._secret, deadline) as conn:
                        send(conn, {"kind": "join", "version": __version__, **request})
                        others = receive_by(conn, deadline, lambda: "")
                        known += [
                            p for p in map(tuple, others["places"]) if p not in (*known, self.place)
                        ]
                        return receive_by(conn, deadline, lambda: "")["welcome"]
                except (OSError, EOFError) as error:
                    trouble = f"{place[0]}:{place[1]}: {error}"
                except Missing:
                    break
            time.sleep(RETRY_SECONDS)
        raise errors.InitializationError(
            f"no member of group {request['group']!r} took this process in within {timeout:g} s "
            f"(asked at {', '.join(f'{host}:{port}' for host, port in known)}; {trouble}). Members "
            "take in whoever waits when they call Communicator.admit()."
        )

    def may_live(self, process: int) -> bool:
        """Whether that process answers, or is where nobody can know: not where it has ended."""
        place = self.places[process]
        if place is None:
            return False
        deadline = time.monotonic() + _PROBE_SECONDS
        try:
            with connect(place, self._secret, deadline) as conn:
                send(conn, {"kind": "who"})
                # Another one may have its port now.
                return receive_by(conn, deadline, lambda: "")["process"] == process
        except (ConnectionRefusedError, errors.InitializationError):
            return False
        except (OSError, EOFError, Missing):
            return True

    def _ask(
        self,
        place: Place,
        name: str,
        member: int,
        word: Any,
        deadline: float,
        why_not: Callable[[], str] = lambda: "",
    ) -> Any:
        trouble = f"nobody listens at {place[0]}:{place[1]}"
        while time.monotonic() < deadline:
            if why := why_not():
                raise Missing(why)
            try:
                with connect(place, self._secret, deadline) as conn:
                    send(conn, {"kind": "word", "name": name, "member": member, "word": word})
                    return receive_by(conn, deadline, why_not)["decision"]
            except (OSError, EOFError) as error:
                trouble = f"process at {place[0]}:{place[1]} does not answer ({error})"
            time.sleep(RETRY_SECONDS)
        raise Missing(trouble)

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
            if not self._strangers.acquire(blocking=False):
                raw.close()
                continue
            threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        # Whatever goes wrong with one connection concerns nobody else.
        with contextlib.suppress(Exception), contextlib.ExitStack() as greeting:
            greeting.callback(self._strangers.release)
            with limited(raw, GREETING_SECONDS) as (conn, no_longer_limited):
                connection.deliver_challenge(conn, self._secret)
                connection.answer_challenge(conn, self._secret)
                request = receive(conn)
                no_longer_limited()
                greeting.close()
                if request["kind"] == "word":
                    self._serve_word(conn, request)
                elif request["kind"] == "who":
                    send(conn, {"process": self.process})
                elif request["kind"] == "join":
                    self._serve_applicant(conn, request)

    def _serve_word(self, conn: connection.Connection, request: dict[str, Any]) -> None:
        name = str(request["name"])
        try:
            decision = self._rooms.wait(
                name,
                int(request["member"]),
                request["word"],
                lambda: conn.poll(0),  # it says nothing more, so this is its end
                unique=name.startswith(_START),
            )
        except Disagreement as error:
            send(conn, {"refused": str(error)})
            return
        send(conn, {"decision": decision})

    def _serve_applicant(self, conn: connection.Connection, request: dict[str, Any]) -> None:
        if self.process is None:
            return  # it waits itself: the other one asks elsewhere
        theirs = request["version"]
        refused = f"the group has jaxccomp {__version__}, not {theirs}"
        if theirs == __version__:
            refused = self.why_refused(request)
        if refused:
            send(conn, {"refused": refused})
            return
        send(conn, {"places": [place for place in self.places if place is not None]})
        with self.applicants.waiting(request) as applicant:
            while not applicant.answered.wait(RETRY_SECONDS):
                if conn.poll(0):
                    return
        send(conn, applicant.answer)

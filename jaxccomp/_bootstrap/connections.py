"""Connections between processes that know one secret, and messages on them: JSON, bounded."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError, connection
from typing import Any

from jaxccomp import errors
from jaxccomp._bootstrap.agreement import NoDecision

SocketAddress = tuple[str, int]  # host and port

# So long a connection may take until both sides have shown their secret.
HANDSHAKE_SECONDS = 10
RETRY_SECONDS = 0.05
_MOST_BYTES = 16 << 20  # of a message


@contextlib.contextmanager
def connect(
    address: SocketAddress,
    secret: bytes,
    deadline: float,
    abort_reason: Callable[[], str] = lambda: "",
) -> Iterator[connection.Connection]:
    """A connection to the process that listens there, of which each side has shown the secret.

    Args:
      address: where it listens.
      secret: of the job.
      deadline: by ``time.monotonic``.
      abort_reason: why it will not answer; empty as long as it may. A host that is off answers
        nothing at all, and is not waited for until the deadline then.

    Raises:
      OSError: where there is none, or it ends.
      EOFError: where the other side ends it.
      InitializationError: where the other side has another secret.
    """
    deadline = min(deadline, time.monotonic() + HANDSHAKE_SECONDS)
    raw = _open(address, deadline, abort_reason)
    with time_limited(raw, deadline - time.monotonic(), abort_reason) as (conn, lift_limit):
        try:
            connection.answer_challenge(conn, secret)
            connection.deliver_challenge(conn, secret)
        except AuthenticationError:
            raise errors.InitializationError(
                f"the process at {address[0]}:{address[1]} has another secret: give all processes "
                "of the job the same one (JAXCCOMP_SECRET), and each job a port of its own."
            ) from None
        lift_limit()
        yield conn


def _open(
    address: SocketAddress, deadline: float, abort_reason: Callable[[], str]
) -> socket.socket:
    """A connected socket: `socket.create_connection`, but it can be given up."""
    trouble = OSError(f"{address[0]} has no address")
    for family, kind, protocol, _, where in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        raw = socket.socket(family, kind, protocol)
        try:
            raw.setblocking(False)
            status = raw.connect_ex(where)
            is_over = select.poll()
            is_over.register(raw, select.POLLOUT)
            while status in (errno.EINPROGRESS, errno.EALREADY):
                if is_over.poll(1000 * RETRY_SECONDS):
                    status = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                elif time.monotonic() > deadline:
                    status = errno.ETIMEDOUT
                elif reason := abort_reason():
                    raise OSError(reason)
            if status:
                raise OSError(status, os.strerror(status))  # ConnectionRefusedError, for instance
            raw.setblocking(True)
            return raw
        except OSError as error:
            raw.close()
            trouble = error
    raise trouble


@contextlib.contextmanager
def time_limited(
    raw: socket.socket, seconds: float, abort_reason: Callable[[], str] = lambda: ""
) -> Iterator[tuple[connection.Connection, Callable[[], None]]]:
    """A connection that ends after so long, unless the function beside it is called before.

    Args:
      raw: what it is made of.
      seconds: how long it may last.
      abort_reason: why it shall end at once; empty as long as it need not.
    """
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    lifted = threading.Event()
    deadline = time.monotonic() + seconds

    def watch(same: socket.socket) -> None:
        while not lifted.wait(RETRY_SECONDS):
            if time.monotonic() > deadline or abort_reason():
                return _end(same)

    with raw.dup() as same:
        watcher = threading.Thread(target=watch, args=(same,), daemon=True)
        watcher.start()
        try:
            with connection.Connection(raw.detach()) as conn:
                yield conn, lifted.set
        finally:
            lifted.set()
            watcher.join()


def _end(raw: socket.socket) -> None:
    with contextlib.suppress(OSError):
        raw.shutdown(socket.SHUT_RDWR)


def send(conn: connection.Connection, message: dict[str, Any]) -> None:
    conn.send_bytes(json.dumps(message).encode())


def receive(conn: connection.Connection) -> dict[str, Any]:
    message = json.loads(conn.recv_bytes(_MOST_BYTES))
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message


def receive_by(
    conn: connection.Connection, deadline: float, abort_reason: Callable[[], str]
) -> dict[str, Any]:
    while not conn.poll(RETRY_SECONDS):
        if reason := abort_reason():
            raise NoDecision(reason)
        if time.monotonic() > deadline:
            raise NoDecision("others have not come")
    message = receive(conn)
    if "refused" in message:
        raise errors.InitializationError(f"refused: {message['refused']}.")
    return message

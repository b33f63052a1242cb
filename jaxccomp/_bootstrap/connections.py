"""Connections between processes that know one secret, and messages on them: JSON, bounded."""

from __future__ import annotations

import contextlib
import json
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
    address: SocketAddress, secret: bytes, deadline: float
) -> Iterator[connection.Connection]:
    """A connection to the process that listens there, of which each side has shown the secret.

    Raises:
      OSError: where there is none, or it ends.
      EOFError: where the other side ends it.
      InitializationError: where the other side has another secret.
    """
    left = max(min(deadline - time.monotonic(), HANDSHAKE_SECONDS), 0.01)
    raw = socket.create_connection(address, left)
    raw.settimeout(None)
    with time_limited(raw, left) as (conn, lift_limit):
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


@contextlib.contextmanager
def time_limited(
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

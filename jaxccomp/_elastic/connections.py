"""Authenticated connections between processes that share a secret, and messages on them.

The handshake has messages of fixed size::

    client: protocol name, client nonce
    server: server nonce
    client: HMAC(secret, "client", transcript)
    server: HMAC(secret, "server", transcript)

The transcript is the protocol name, the server's address as each side sees it, and both nonces. So
a proof is invalid in the other role, at another server, or later: a process that listens at the
port of an ended member cannot relay a handshake to another member. Afterwards each direction has
its own key, and each message carries an HMAC that covers a sequence number. All HMACs are SHA-256.
Messages are JSON of a bounded size; they are authenticated, not encrypted.

The server side is a state machine on a non-blocking socket (`ServerHandshake`): silent connections
need no threads.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from jaxccomp import errors
from jaxccomp._elastic.agreement import NoDecision

SocketAddress = tuple[str, int]  # host and port

# Time limit of a handshake.
HANDSHAKE_SECONDS = 10
RETRY_SECONDS = 0.05
_MAX_BYTES = 16 << 20  # of a message
_MAX_SECONDS = 10.0  # to send a message, or to receive the rest of one after its first byte
_IDLE_POLL_SECONDS = 1.0  # poll interval without a deadline
_PROTOCOL = b"jaxccomp-rendezvous-2\n"
_NONCE_BYTES = 32
_MAC_BYTES = hashlib.sha256().digest_size
_LENGTH = struct.Struct("!I")
_SEQUENCE = struct.Struct("!Q")
_HELLO_BYTES = len(_PROTOCOL) + _NONCE_BYTES


def as_address(value: Any) -> SocketAddress:
    """Return an address that was decoded from JSON."""
    host, port = value
    return str(host), int(port)


def mac(key: bytes, *parts: bytes) -> bytes:
    """Return the HMAC-SHA256 of length-prefixed parts, so that it differs for different lists."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        digest.update(_LENGTH.pack(len(part)) + part)
    return digest.digest()


def _address_bytes(address: Any) -> bytes:
    host, port = address[:2]
    with contextlib.suppress(OSError, ValueError):
        host = socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)[0][4][0]
    return f"{str(host).partition('%')[0]} {port}".encode()


class _Handshake:
    """The proofs and keys of a handshake, which both sides compute."""

    def __init__(self, secret: bytes, address: Any, client_nonce: bytes, server_nonce: bytes):
        self._secret = secret
        self._transcript = (_PROTOCOL, _address_bytes(address), client_nonce, server_nonce)

    def proof(self, role: bytes) -> bytes:
        return mac(self._secret, role, *self._transcript)

    def key(self, sender: bytes) -> bytes:
        return mac(self._secret, b"key of the " + sender, *self._transcript)


class Connection:
    """Messages to and from an authenticated process. For one thread at a time.

    Args:
      raw: a connected socket.
      sends: the key for messages that this side sends.
      receives: the key for messages that this side receives.
    """

    def __init__(self, raw: socket.socket, sends: bytes, receives: bytes):
        self._raw = raw
        self._sends, self._receives = sends, receives
        self._sent = self._received = 0
        raw.setblocking(False)
        for level, option in (
            (socket.IPPROTO_TCP, socket.TCP_NODELAY),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        ):
            with contextlib.suppress(OSError):
                raw.setsockopt(level, option, 1)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the other side sees its end."""
        self._raw.close()

    def poll(self, seconds: float = 0.0) -> bool:
        """Return whether a message or the end of the connection comes within ``seconds``."""
        return bool(_ready(self._raw, select.POLLIN, seconds))

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
          OSError: when the connection has ended, or the other side does not read.
        """
        data = json.dumps(message).encode()
        header = _LENGTH.pack(len(data))
        code = mac(self._sends, _SEQUENCE.pack(self._sent), data)
        self._sent += 1
        _send(self._raw, header + code + data, time.monotonic() + _MAX_SECONDS)

    def receive(
        self,
        deadline: float = float("inf"),
        abort_reason: Callable[[], str] = lambda: "",
    ) -> dict[str, Any]:
        """Return the next message.

        Args:
          deadline: by ``time.monotonic``, for the first byte.
          abort_reason: returns why to stop waiting; empty to go on.

        Raises:
          EOFError: when the connection has ended, or the message is not authentic.
          NoDecision: at the deadline, or with the abort reason.
          OSError: when the connection has broken, or stalls within a message.
        """
        pause = RETRY_SECONDS if deadline < float("inf") else _IDLE_POLL_SECONDS
        while not self.poll(pause):
            if reason := abort_reason():
                raise NoDecision(reason)
            if time.monotonic() > deadline:
                raise NoDecision("others have not come")
        until = time.monotonic() + _MAX_SECONDS
        (length,) = _LENGTH.unpack(_read(self._raw, _LENGTH.size, until))
        if length > _MAX_BYTES:
            raise EOFError("a message is too long")
        code = _read(self._raw, _MAC_BYTES, until)
        data = _read(self._raw, length, until)
        expected = mac(self._receives, _SEQUENCE.pack(self._received), data)
        if not hmac.compare_digest(code, expected):
            self.close()
            raise EOFError("a message has a wrong HMAC")
        self._received += 1
        message = json.loads(data)
        if not isinstance(message, dict):
            raise ValueError("not an object")
        return message


def open_connection(
    address: SocketAddress,
    secret: bytes,
    deadline: float,
    abort_reason: Callable[[], str] = lambda: "",
) -> Connection:
    """Connect to the process at ``address``, and authenticate both sides.

    Args:
      address: the listener's own address; a forwarded port does not work.
      secret: the job's secret.
      deadline: by ``time.monotonic``.
      abort_reason: returns why the process will not answer; empty while it may. A host that is off
        refuses no connection: only the abort reason or the deadline ends the wait for it.

    Raises:
      OSError: when the connection fails or breaks.
      EOFError: when the other side closes it.
      InitializationError: when the other side has another secret or another address.
    """
    deadline = min(deadline, time.monotonic() + HANDSHAKE_SECONDS)
    raw = _open(address, deadline, abort_reason)
    try:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        _send(raw, _PROTOCOL + nonce, deadline)
        theirs = _read(raw, _NONCE_BYTES, deadline, abort_reason)
        shake = _Handshake(secret, raw.getpeername(), nonce, theirs)
        _send(raw, shake.proof(b"client"), deadline)
        proof = _read(raw, _MAC_BYTES, deadline, abort_reason)
        if not hmac.compare_digest(proof, shake.proof(b"server")):
            raise errors.InitializationError(
                f"the process at {address[0]}:{address[1]} has another secret, or listens at "
                "another address: give all processes of the job the same secret "
                "(JAXCCOMP_SECRET) and each job a port of its own, and forward no port."
            )
        return Connection(raw, shake.key(b"client"), shake.key(b"server"))
    except BaseException:
        raw.close()
        raise


@contextlib.contextmanager
def connect(
    address: SocketAddress,
    secret: bytes,
    deadline: float,
    abort_reason: Callable[[], str] = lambda: "",
) -> Iterator[Connection]:
    """Like `open_connection`, as a context manager."""
    with open_connection(address, secret, deadline, abort_reason) as opened:
        yield opened


class ServerHandshake:
    """The server's side of a handshake.

    Attributes:
      raw: the non-blocking socket.
      host: the address of the other end.
      accepted_at: when the connection was accepted, by ``time.monotonic``.
      has_spoken: whether any byte has come.
    """

    def __init__(self, raw: socket.socket, host: str, secret: bytes):
        self.raw, self.host, self.accepted_at = raw, host, time.monotonic()
        self.has_spoken = False
        self._secret = secret
        self._buffer = b""
        self._shake: _Handshake | None = None

    def advance(self) -> Connection | None:
        """Read the received bytes, and continue the handshake.

        Returns:
          The connection once both sides are authenticated; None before.

        Raises:
          EOFError: when the caller has to close the connection.
          OSError: when the connection has broken.
        """
        wanted = _HELLO_BYTES if self._shake is None else _MAC_BYTES
        try:
            came = self.raw.recv(wanted - len(self._buffer))
        except BlockingIOError:
            return None
        if not came:
            raise EOFError
        self.has_spoken = True
        self._buffer += came
        if not _PROTOCOL.startswith(self._buffer[: len(_PROTOCOL)]) and self._shake is None:
            raise EOFError("another protocol")
        if len(self._buffer) < wanted:
            return None
        data, self._buffer = self._buffer, b""
        if self._shake is None:
            nonce = secrets.token_bytes(_NONCE_BYTES)
            address = self.raw.getsockname()
            self._shake = _Handshake(self._secret, address, data[len(_PROTOCOL) :], nonce)
            self.raw.send(nonce)  # cannot block: the send buffer of a new connection is empty
            return None
        if not hmac.compare_digest(data, self._shake.proof(b"client")):
            # Answer with an invalid proof, by which the client detects the other secret.
            self.raw.send(bytes(_MAC_BYTES))
            raise EOFError("another secret")
        self.raw.send(self._shake.proof(b"server"))
        return Connection(self.raw, self._shake.key(b"server"), self._shake.key(b"client"))


def _open(
    address: SocketAddress, deadline: float, abort_reason: Callable[[], str]
) -> socket.socket:
    """Return a connected socket: `socket.create_connection` with ``abort_reason``."""
    last_error = OSError(f"{address[0]} has no address")
    for family, kind, protocol, _, where in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        raw = socket.socket(family, kind, protocol)
        try:
            raw.setblocking(False)
            status = raw.connect_ex(where)
            while status in (errno.EINPROGRESS, errno.EALREADY):
                if _ready(raw, select.POLLOUT, RETRY_SECONDS):
                    status = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                elif time.monotonic() > deadline:
                    status = errno.ETIMEDOUT
                elif reason := abort_reason():
                    raise OSError(reason)
            if status:
                raise OSError(status, os.strerror(status))  # or its subclass for this status
            return raw
        except OSError as error:
            raw.close()
            last_error = error
    raise last_error


def _ready(raw: socket.socket, events: int, seconds: float) -> list[tuple[int, int]]:
    if raw.fileno() < 0:
        raise EOFError("the connection is closed")
    poller = select.poll()
    poller.register(raw, events)
    return poller.poll(1000 * max(seconds, 0.0))


def _read(
    raw: socket.socket,
    size: int,
    deadline: float,
    abort_reason: Callable[[], str] = lambda: "",
) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not _ready(raw, select.POLLIN, RETRY_SECONDS):
            if reason := abort_reason():
                raise OSError(reason)
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "the other side has stopped within a message")
            continue
        try:
            came = raw.recv(min(size - len(data), 1 << 16))
        except BlockingIOError:
            continue
        if not came:
            raise EOFError("the connection has ended")
        data += came
    return bytes(data)


def _send(raw: socket.socket, data: bytes, deadline: float) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[raw.send(view) :]
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "the other side does not read") from None
            _ready(raw, select.POLLOUT, RETRY_SECONDS)


def receive_by(
    conn: Connection, deadline: float, abort_reason: Callable[[], str]
) -> dict[str, Any]:
    """Return the answer to a request.

    Raises:
      InitializationError: when the request is refused.
    """
    message = conn.receive(deadline, abort_reason)
    if "refused" in message:
        raise errors.InitializationError(f"refused: {message['refused']}.")
    return message

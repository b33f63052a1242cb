"""Authenticated connections between processes that know one secret, and messages on them.

Handshake, of which each message has a fixed size::

    client: protocol name, client nonce
    server: server nonce
    client: HMAC(secret, "client", transcript)
    server: HMAC(secret, "server", transcript)

The transcript is the address that the client has dialed, by which the server knows itself, and both
nonces. So a proof is worth nothing in the other role, at another server, or later: a process that
listens at the port of a member that has ended cannot relay a handshake to another member. Each
direction then has a key of its own, and each message carries its HMAC with a sequence number. All
HMACs are SHA-256. Messages are JSON of a bounded size; they are authenticated, not encrypted.

The server side is a state machine on a socket that never blocks (`ServerHandshake`), so any number
of silent connections costs no thread.
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
from jaxccomp._bootstrap.agreement import NoDecision

SocketAddress = tuple[str, int]  # host and port

# So long a connection may take until both sides have shown their secret.
HANDSHAKE_SECONDS = 10
RETRY_SECONDS = 0.05
_MAX_BYTES = 16 << 20  # of a message
_MAX_SECONDS = 10.0  # for the rest of a message that has begun to come, or to be sent
_IDLE_POLL_SECONDS = 1.0  # where no deadline is kept
_PROTOCOL = b"jaxccomp-rendezvous-2\n"
_NONCE_BYTES = 32
_MAC_BYTES = hashlib.sha256().digest_size
_LENGTH = struct.Struct("!I")
_SEQUENCE = struct.Struct("!Q")
_HELLO_BYTES = len(_PROTOCOL) + _NONCE_BYTES


def mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 of parts, each with its length, so that no two lists of parts are alike."""
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
    """What both sides compute of it."""

    def __init__(self, secret: bytes, address: Any, client_nonce: bytes, server_nonce: bytes):
        self._secret = secret
        self._transcript = (_PROTOCOL, _address_bytes(address), client_nonce, server_nonce)

    def proof(self, role: bytes) -> bytes:
        return mac(self._secret, role, *self._transcript)

    def key(self, sender: bytes) -> bytes:
        return mac(self._secret, b"key of the " + sender, *self._transcript)


class Connection:
    """Messages to and from a process that has shown the secret. For one thread at a time.

    Args:
      raw: connected.
      sends: key of messages that this side sends.
      receives: key of those that it receives.
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
        """Ends it. The other side notices."""
        self._raw.close()

    def poll(self, seconds: float = 0.0) -> bool:
        """Whether a message, or the end of the connection, has come within that time."""
        return bool(_ready(self._raw, select.POLLIN, seconds))

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message.

        Raises:
          OSError: when the connection has ended, or the other side takes nothing.
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
        """The next message.

        Args:
          deadline: by ``time.monotonic``, for its first byte.
          abort_reason: why it is not awaited any more; empty as long as it is.

        Raises:
          EOFError: when the connection has ended, or the message is not authentic.
          NoDecision: when it is not awaited any more.
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
            raise EOFError("a message is not from the process that has shown the secret")
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
    """A connection to the process that listens there; each side has shown the secret.

    Args:
      address: where it listens, as it is called there: no port is forwarded.
      secret: of the job.
      deadline: by ``time.monotonic``.
      abort_reason: why it will not answer; empty as long as it may. A host that is off answers
        nothing at all, and is not waited for until the deadline then.

    Raises:
      OSError: where there is none, or it ends.
      EOFError: where the other side ends it.
      InitializationError: where the other side has another secret or another address.
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
    """As `open_connection`, for the length of a ``with`` block."""
    with open_connection(address, secret, deadline, abort_reason) as opened:
        yield opened


class ServerHandshake:
    """The server's side of one that is under way.

    Attributes:
      raw: the socket, which does not block.
      host: the address of the other end.
      came: when it was accepted, by ``time.monotonic``.
      has_spoken: whether anything has come.
    """

    def __init__(self, raw: socket.socket, host: str, secret: bytes):
        self.raw, self.host, self.came = raw, host, time.monotonic()
        self.has_spoken = False
        self._secret = secret
        self._buffer = b""
        self._shake: _Handshake | None = None

    def advance(self) -> Connection | None:
        """Reads what has come.

        Returns:
          The connection once both sides have shown the secret; None as long as more is awaited.

        Raises:
          EOFError: when it is to be closed.
          OSError: when it has broken.
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
            self.raw.send(nonce)  # the send buffer of a new connection holds it
            return None
        if not hmac.compare_digest(data, self._shake.proof(b"client")):
            self.raw.send(bytes(_MAC_BYTES))  # no proof: the client can tell why
            raise EOFError("another secret")
        self.raw.send(self._shake.proof(b"server"))
        return Connection(self.raw, self._shake.key(b"server"), self._shake.key(b"client"))


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
            while status in (errno.EINPROGRESS, errno.EALREADY):
                if _ready(raw, select.POLLOUT, RETRY_SECONDS):
                    status = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                elif time.monotonic() > deadline:
                    status = errno.ETIMEDOUT
                elif reason := abort_reason():
                    raise OSError(reason)
            if status:
                raise OSError(status, os.strerror(status))  # ConnectionRefusedError, for instance
            return raw
        except OSError as error:
            raw.close()
            trouble = error
    raise trouble


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
                raise TimeoutError(errno.ETIMEDOUT, "it has stopped in the midst of a message")
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
                raise TimeoutError(errno.ETIMEDOUT, "it takes nothing") from None
            _ready(raw, select.POLLOUT, RETRY_SECONDS)


def receive_by(
    conn: Connection, deadline: float, abort_reason: Callable[[], str]
) -> dict[str, Any]:
    """The answer to a request.

    Raises:
      InitializationError: when it is refused.
    """
    message = conn.receive(deadline, abort_reason)
    if "refused" in message:
        raise errors.InitializationError(f"refused: {message['refused']}.")
    return message

"""Connections between processes that share a secret, and attacks without it."""

import hmac
import json
import socket
import struct
import threading
import time

import patience
import pytest
from golden_errors import raises

from jaxccomp import errors
from jaxccomp._elastic import connections, rendezvous
from jaxccomp._elastic.connections import connect, mac, open_connection
from jaxccomp._elastic.rendezvous import Rendezvous
from jaxccomp._runtime import ucx

HOST = "127.0.0.1"
SECRET = b"a secret of tests"
HELLO = len(connections._PROTOCOL) + connections._NONCE_BYTES


@pytest.fixture
def make():
    made = []

    def make_one(secret=SECRET):
        made.append(Rendezvous(HOST, 0, secret))
        made[-1].process = len(made) - 1
        return made[-1]

    yield make_one
    for each in made:
        each.stop()


def soon(seconds=20):
    return time.monotonic() + patience.seconds(seconds)


def received(raw, size):
    raw.settimeout(patience.seconds(20))
    data = b""
    while len(data) < size:
        try:
            came = raw.recv(size - len(data))
        except ConnectionResetError:
            break
        if not came:
            break
        data += came
    return data


class Relay:
    """An attacker with its own port that relays all bytes to a member, and records them."""

    def __init__(self, member, change=lambda number, data: data):
        self._listener = socket.create_server((HOST, 0))
        self.address = self._listener.getsockname()
        self.seen = []
        self._change = change
        threading.Thread(target=self._run, args=(member,), daemon=True).start()

    def _run(self, member):
        client, _ = self._listener.accept()
        server = socket.create_connection(member)
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source, sink):
        while data := source.recv(1 << 16):
            self.seen.append(data)
            sink.sendall(self._change(len(self.seen), data))
        sink.close()


def test_posted_messages_arrive_once_and_in_order(make):
    member, other = make(), make()
    came = []
    member.on_posted = lambda source, message: came.append((source, message))
    other.addresses = [member.address, other.address]
    for number in range(5):
        other.post(0, {"number": number})
    assert patience.wait_for(lambda: len(came) == 5, 20)
    assert came == [(1, {"number": number}) for number in range(5)]


def test_client_sends_no_secret_through_a_relay(make):
    """An attacker has the port of an ended member, and relays to another member."""
    relay = Relay(make().address)
    with pytest.raises((errors.InitializationError, EOFError, OSError)):
        with connect(relay.address, SECRET, soon()) as conn:
            conn.send({"kind": "join", "secret": "never sent"})
    assert b"never sent" not in b"".join(relay.seen)


def test_modified_message_closes_the_connection(make):
    member = make()
    came = []
    member.on_posted = lambda source, message: came.append(message)
    sent = []
    conn = open_connection(member.address, SECRET, soon())
    conn._sends = mac(b"another key")
    conn.send({"kind": "posted", "source": 1, "message": sent})
    with pytest.raises((EOFError, OSError)):
        conn.receive(soon())
    assert came == []


def test_replayed_message_closes_the_connection(make):
    """The HMAC covers a sequence number, so a repeated message is refused."""
    member = make()
    came = []
    member.on_posted = lambda source, message: came.append(message)
    conn = open_connection(member.address, SECRET, soon())
    conn.send({"kind": "posted", "source": 1, "message": 1})
    conn._sent = 0
    conn.send({"kind": "posted", "source": 1, "message": 1})
    with pytest.raises((EOFError, OSError)):
        conn.receive(soon())
    assert came == [1]


def test_handshake_cannot_be_replayed(make):
    """The server draws a new nonce each time."""
    member = make()
    with socket.create_connection(member.address) as raw:
        hello = connections._PROTOCOL + bytes(connections._NONCE_BYTES)
        raw.sendall(hello)
        nonce = received(raw, connections._NONCE_BYTES)
        shake = connections._Handshake(SECRET, member.address, hello[-32:], nonce)
        proof = shake.proof(b"client")
        raw.sendall(proof)
        assert received(raw, 32) == shake.proof(b"server")
    with socket.create_connection(member.address) as raw:
        raw.sendall(hello)
        assert received(raw, 32) != nonce
        raw.sendall(proof)
        assert received(raw, 64) == bytes(32)  # an invalid proof, then the end


def test_handshake_proof_cannot_be_reflected(make):
    """A client without the secret returns the server's bytes."""
    member = make()
    with socket.create_connection(member.address) as raw:
        raw.sendall(connections._PROTOCOL + bytes(32))
        raw.sendall(received(raw, 32))
        assert received(raw, 64) == bytes(32)
    with raises(errors.InitializationError, "127.0.0.1", "JAXCCOMP_SECRET"):
        listener = socket.create_server((HOST, 0))

        def reflect():
            raw, _ = listener.accept()
            hello = received(raw, HELLO)
            raw.sendall(hello[-32:])
            raw.sendall(received(raw, 32))

        threading.Thread(target=reflect, daemon=True).start()
        open_connection(listener.getsockname(), SECRET, soon())


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4000, connections._PROTOCOL + bytes(500)],
    ids=["HTTP", "zeros", "a hello and garbage"],
)
def test_invalid_bytes_close_the_connection_at_once(make, sent):
    member = make()
    with socket.create_connection(member.address) as raw:
        raw.sendall(sent)
        received(raw, 1000)
    assert patience.wait_for(lambda: member.closed_unauthenticated["refused"] == 1, 20)


@pytest.mark.parametrize("count", [64, 500, 3000])
def test_silent_connections_do_not_delay_members_messages(make, count):
    """All members' messages arrive, and few unauthenticated connections are kept."""
    member, other = make(), make()
    came = []
    member.on_posted = lambda source, message: came.append(message)
    other.addresses = [member.address, other.address]
    other.post(0, {"number": 0})
    assert patience.wait_for(lambda: len(came) == 1, 20)
    strangers = []
    try:
        for number in range(count):
            raw = socket.socket()
            raw.setblocking(False)
            raw.connect_ex(member.address)
            strangers.append(raw)
            if number % 50 == 0:
                other.post(0, {"number": len(came)})  # on an open connection
                conn = open_connection(member.address, SECRET, soon())  # a new one
                conn.send({"kind": "posted", "source": 1, "message": {}})
                conn.close()
        expected = 1 + 2 * len(range(0, count, 50))
        assert patience.wait_for(lambda: len(came) == expected, 20)
        assert patience.wait_for(lambda: sum(member.closed_unauthenticated.values()) == count, 30)
        if count > 64:
            assert member.closed_unauthenticated["evicted"] > 0
    finally:
        for raw in strangers:
            raw.close()


def test_idle_connections_are_reused(make, monkeypatch):
    opened = []
    original = rendezvous.open_connection

    def counted(*arguments):
        opened.append(arguments[0])
        return original(*arguments)

    monkeypatch.setattr(rendezvous, "open_connection", counted)
    leader, other = make(), make()
    for each in (leader, other):
        each.addresses = [leader.address, other.address]
    for number in range(5):
        rows = [None, None]

        def share(rank, each, number=number, rows=rows):
            rows[rank] = each.share((0, 1), rank, "some", [number], patience.seconds(20)).tolist()

        threads = [threading.Thread(target=share, args=pair) for pair in enumerate((leader, other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience.seconds(20))
        assert rows == [[[number]] * 2] * 2
    assert opened == [leader.address]


def test_message_above_the_size_limit_is_refused(make):
    member = make()
    conn = open_connection(member.address, SECRET, soon())
    conn._raw.setblocking(True)
    conn._raw.sendall(struct.pack("!I", 1 << 30))
    with pytest.raises((EOFError, OSError)):
        conn.receive(soon())


def derive(purpose, *parts):
    return mac(SECRET, purpose, *parts)


def test_unseal_refuses_altered_or_foreign_ucx_worker_addresses(monkeypatch):
    monkeypatch.setattr(ucx, "version", lambda: "1.20.0")
    sealed = ucx.seal(b"an address", derive)
    assert ucx.unseal(json.loads(json.dumps(sealed)), derive) == b"an address"
    for changed, facts in [
        ({"address": b"another".hex()}, ("UCX", "HMAC")),
        ({"mac": "00"}, ("UCX", "HMAC")),
        ({"address": ""}, ("UCX", "0 bytes", "65536")),
        ({"address": "00" * 70000}, ("UCX", "70000 bytes", "65536")),
        ({"address": "no"}, ("UCX", "cannot be read")),
        ({"ucx": "1.17.0"}, ("UCX", "1.17.0", "1.20.0")),
    ]:
        with raises(errors.InitializationError, facts):
            ucx.unseal(sealed | changed, derive)
    with raises(errors.InitializationError, "UCX", "cannot be read"):
        ucx.unseal(None, derive)


def test_ucx_secret_is_derived_from_salt_and_group_secret():
    found = ucx.secret_of(b"salt", derive)
    assert len(found) == 16
    assert found == ucx.secret_of(b"salt", derive) != ucx.secret_of(b"another", derive)
    assert not hmac.compare_digest(found, ucx.secret_of(b"salt", lambda *p: mac(b"other", *p)))


@pytest.mark.parametrize(("address", "name"), [("127.0.0.1", "lo"), ("203.0.113.7", "")])
def test_interface_returns_the_network_interface_of_an_address(address, name):
    assert ucx._interface(address) == name

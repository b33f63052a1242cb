"""Rendezvous at a coordinator, and rejected processes. Each process is a thread here."""

import contextlib
import os
import socket
import struct
import threading
import time

import patience
import pytest
from golden_errors import check_text, has_fact, raises

from jaxccomp import errors
from jaxccomp._elastic import join
from jaxccomp._elastic.agreement import NoDecision
from jaxccomp._elastic.connections import connect
from jaxccomp._elastic.join import _check_reachable
from jaxccomp._elastic.rendezvous import Rendezvous
from jaxccomp._native.version import __version__

HOST = "127.0.0.1"
SECRET = b"a secret of tests"


@pytest.fixture
def make():
    made = []

    def make_one(secret=SECRET, port=0, host=HOST):
        made.append(Rendezvous(host, port, secret))
        return made[-1]

    yield make_one
    for each in made:
        each.stop()


def in_threads(functions):
    """Returns the result of each function, or its error."""
    found = [None] * len(functions)

    def run(index):
        try:
            found[index] = functions[index]()
        except errors.JaxccompError as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience.seconds(60))
        assert not thread.is_alive()
    return found


def started(make, size, ranks=None, sizes=None, timeout=None, host=HOST):
    """Starts processes; returns them, and each one's result or error."""
    made = [make(host=host) for _ in range(size)]
    at, timeout = made[0].address, timeout or patience.seconds(20)
    ranks, sizes = ranks or range(size), sizes or [size] * size
    found = in_threads(
        [
            lambda m=m, r=r, s=s: m.exchange_addresses(r, s, at, timeout)
            for m, r, s in zip(made, ranks, sizes, strict=True)
        ]
    )
    for rank, each in enumerate(made):
        each.process = rank
    return made, found


def check_that_two_share(made):
    rows = in_threads(
        [lambda r=r: made[r].share((0, 1), r, "some", [r], patience.seconds(20)) for r in range(2)]
    )
    assert [row.tolist() for row in rows] == [[[0], [1]]] * 2


@pytest.mark.parametrize("host", [HOST, "::1"], ids=["IPv4", "IPv6"])
def test_processes_exchange_addresses_and_allgather_records(make, host):
    if host == "::1" and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this system has no IPv6")
    made, found = started(make, 4, host=host)
    assert found == [None] * 4
    assert all(each.addresses == [other.address for other in made] for each in made)
    members = (3, 0, 2)  # the first one leads
    for number in range(3):
        rows = in_threads(
            [
                lambda rank=rank, p=p, n=number: made[p].share(
                    members, rank, "some", [p, n, -7], 20
                )
                for rank, p in enumerate(members)
            ]
        )
        for row in rows:
            assert row.tolist() == [[p, number, -7] for p in members]


def test_records_of_different_lengths_raise_on_all_processes(make):
    made, _ = started(make, 2)
    found = in_threads(
        [
            lambda r=r: made[r].share((0, 1), r, "uneven", [0] * (1 + r), patience.seconds(20))
            for r in range(2)
        ]
    )
    for each in found:
        check_text(str(each), "'uneven'")


def test_missing_processes_are_named_and_failed_ones_end_the_wait(make):
    made, _ = started(make, 3)
    with raises(
        errors.InitializationError, "'some'", "[0, 1, 2]", "[0]", "0.3 s", "init_timeout_seconds"
    ):
        made[0].share((0, 1, 2), 0, "some", [1], 0.3)
    made[0].why_gone = lambda processes: "rank 2 has died" if 2 in processes else ""
    watch = patience.Stopwatch()
    with raises(
        errors.InitializationError,
        "'some'",
        "[0, 1, 2]",
        "rank 2 has died",
        "init_timeout_seconds",
        golden=False,
    ):
        made[0].share((0, 1, 2), 0, "some", [1], patience.seconds(30))
    assert watch.seconds() < 10


@pytest.mark.parametrize("full", [False, True], ids=["says nothing", "takes no connection"])
def test_wait_for_a_silent_leader_ends_when_its_failure_is_known(make, full):
    # A host without network answers neither connections nor messages.
    made, _ = started(make, 1)
    with socket.create_server((HOST, 0), backlog=0) as silent, contextlib.ExitStack() as others:
        for _ in range(8 if full else 0):  # further connections are neither accepted nor refused
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(silent.getsockname())
        made[0].addresses.append(silent.getsockname()[:2])
        begun, watch = time.monotonic(), patience.Stopwatch()
        why = lambda: "it is gone" if time.monotonic() > begun + 0.5 else ""  # noqa: E731
        with raises(NoDecision, "it is gone"):
            made[0].agree("some", 1, 0, None, lambda proposals: None, patience.seconds(20), why)
        assert time.monotonic() - begun > 0.5 and watch.seconds() < 3


@pytest.mark.parametrize(
    ("ranks", "sizes", "facts"),
    [
        ([0, 1, 1], None, ("two", "rank 1")),
        (None, [3, 3, 4], ("[3, 4]",)),
    ],
)
def test_duplicate_ranks_and_different_sizes_are_refused(make, ranks, sizes, facts):
    _, found = started(make, 3, ranks, sizes, timeout=patience.seconds(1.5))
    told = {str(each) for each in found if isinstance(each, errors.InitializationError)}
    assert any(all(has_fact(text, fact) for fact in facts) for text in told), found


def test_process_with_another_secret_is_refused_without_effect_on_members(make):
    made, _ = started(make, 2)
    with raises(errors.InitializationError, "127.0.0.1", "JAXCCOMP_SECRET"):
        make(b"another secret of 16").exchange_addresses(1, 2, made[0].address, 5)
    check_that_two_share(made)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
        struct.pack("!i", -1) + struct.pack("!Q", 1 << 60),
        struct.pack("!i", 1 << 30),
        b"\0" * 4000,
    ],
)
def test_unauthenticated_bytes_do_not_affect_members(make, sent):
    made, _ = started(make, 2)
    with socket.create_connection(made[0].address, 10) as stranger:
        stranger.sendall(sent)
        check_that_two_share(made)


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "proposal"},
        {"kind": "proposal", "name": "x", "member": "one", "proposal": None},
        {"kind": "nothing"},
        {"kind": "join", "version": __version__},
        {},
    ],
)
def test_invalid_authenticated_messages_do_not_affect_members(make, message):
    made, _ = started(make, 2)
    made[0].why_refused = lambda request: "" if "group" in request else "cannot be read"
    with connect(made[0].address, SECRET, time.monotonic() + patience.seconds(10)) as conn:
        conn.send(message)
        try:
            assert "refused" in conn.receive()
        except (EOFError, OSError):
            pass  # the peer closed the connection
    check_that_two_share(made)


def test_process_of_another_version_is_refused(make):
    made, _ = started(make, 1)
    with connect(made[0].address, SECRET, time.monotonic() + patience.seconds(10)) as conn:
        conn.send({"kind": "join", "version": "0.0.0"})
        assert "0.0.0" in conn.receive()["refused"]


def test_joining_process_admits_no_other_process(make):
    waiting = make()
    with raises(
        errors.InitializationError, "'world'", "0.5 s", "Communicator.admit()", golden=False
    ):
        make().request_join([waiting.address], "world", dict, 0.5)
    assert waiting.wait_list.of("world") == []


def test_waiting_process_is_answered_and_dropped_when_it_disconnects(make):
    made, _ = started(make, 1)
    answers = []
    waits = threading.Thread(
        target=lambda: answers.append(
            make().request_join([("127.0.0.1", 9), made[0].address], "world", dict, 20)
        )
    )
    waits.start()
    assert patience.wait_for(lambda: made[0].wait_list.of("world"), 20)
    assert made[0].wait_list.of("another") == []
    made[0].wait_list.of("world")[0].answer({"accepted": {"process": 7}})
    waits.join(patience.seconds(20))
    assert answers == [{"process": 7}]
    with raises(
        errors.InitializationError,
        "'world'",
        "0.5 s",
        "no process answered",
        "Communicator.admit()",
    ):
        make().request_join([made[0].address], "world", dict, 0.5)
    assert patience.wait_for(lambda: made[0].wait_list.of("world") == [], 20)


def test_joiner_collects_its_local_info_after_it_reaches_a_member(make):
    """The joining process's network may be down until then."""
    with socket.create_server((HOST, 0)) as free:
        nobody = free.getsockname()[:2]
    asked = []
    with raises(
        errors.InitializationError,
        "'world'",
        "0.5 s",
        "Connection refused",
        "Communicator.admit()",
        golden=False,
    ):
        make().request_join([nobody], "world", lambda: asked.append(1) or {}, 0.5)
    assert asked == []
    made, _ = started(make, 1)
    with pytest.raises(errors.InitializationError):
        make().request_join(
            [made[0].address], "world", lambda: asked.append(1) or {}, patience.seconds(1)
        )
    assert asked


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"secret": None}, ("coordinator=", "16", "none", "JAXCCOMP_SECRET")),
        ({"secret": "short"}, ("coordinator=", "16", "5", "JAXCCOMP_SECRET")),
        ({"coordinator": "10.0.0.1"}, ("coordinator", "'host:port'", "'10.0.0.1:1234'")),
        ({"coordinator": "10.0.0.1:0"}, ("coordinator", "'host:port'", "'10.0.0.1:1234'")),
        ({"coordinator": "10.0.0.1:http"}, ("coordinator", "'host:port'", "'10.0.0.1:1234'")),
        ({"coordinator": "a:1,b:2"}, ("coordinator", "2", "'a:1,b:2'")),
        ({"rank": 3}, ("coordinator=", "rank=", "size=", "0 <= rank < size", "join=")),
        ({"rank": -1}, ("coordinator=", "rank=", "size=", "0 <= rank < size", "join=")),
        ({"size": None}, ("coordinator=", "rank=", "size=", "0 <= rank < size", "join=")),
        ({"join": "world"}, ("join='world'", "rank=", "size=")),
    ],
)
def test_invalid_join_parameters_raise_errors_that_name_the_argument(given, facts):
    good = {"coordinator": "a:1", "rank": 0, "size": 2, "join": "", "secret": SECRET.decode()}
    assert join.checked(**good).addresses == (("a", 1),)
    with raises(errors.InvalidArgumentError, facts):
        join.checked(**good | given)


def test_rank_and_size_default_to_the_launchers_variables(monkeypatch):
    monkeypatch.setenv("JAXCCOMP_RANK", "1")
    monkeypatch.setenv("JAXCCOMP_SIZE", "4")
    found = join.checked("[::1]:5", None, None, "", SECRET.decode())
    assert (found.rank, found.size, found.addresses) == (1, 4, (("::1", 5),))


def test_coordinator_on_loopback_is_refused_for_other_hosts(monkeypatch):
    def loopback(host, *_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.1.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", loopback)
    with raises(errors.InitializationError, "'head'", "127.0.1.1", "'localhost'"):
        _check_reachable(("head", 1), 2)
    _check_reachable(("localhost", 1), 2)
    _check_reachable(("head", 1), 1)


@pytest.mark.parametrize("address", ["fe80::1", "fe80::1%lo"])
def test_link_local_coordinator_address_is_refused(address):
    with raises(errors.InitializationError, "fe80::1"):
        _check_reachable((address, 1), 2)


def test_coordinator_without_an_address_is_refused():
    with raises(errors.InitializationError, "'nobody.invalid'", golden=False):
        _check_reachable(("nobody.invalid", 1), 2)

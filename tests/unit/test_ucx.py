"""How processes without MPI choose a UCX and exchange addresses; needs no UCX."""

import subprocess
import types

import numpy as np
import pytest
from golden_errors import check_text, raises

from jaxccomp import config, errors
from jaxccomp._native import engine, libraries
from jaxccomp._runtime import environment, join, peer_info, ucx


def shared_by(tables):
    """A share that returns the given answers in order, each computed from the caller's row."""
    answers = iter(tables)

    def share(row):
        assert all(isinstance(each, int) for each in row)
        return next(answers)(list(row))

    return share


class Worker:
    """A fake UCX worker. By default no other process can read its memory."""

    def __init__(self, address, readable=()):
        self.address = address
        self.readable = readable
        self.asked = None

    def let_read(self):
        return self.address.ljust(16, b"+")[:16]

    def find_readable(self, processes):
        self.asked = processes
        return [pid in self.readable and guard != bytes(16) for pid, guard in processes]


def test_processes_receive_rank_0s_secret_and_all_addresses():
    addresses = [b"first", b"a longer address", b"x"]
    rows = []
    found = []
    for process in (0, 1, 2):
        met = shared_by(
            [
                lambda row: [[len(each)] for each in addresses],
                lambda row, process=process: rows.append(row) or [row, row, row],
                lambda row: [row, row, row],
            ]
        )
        found.append(ucx.connect(met, process, Worker(addresses[process]), [0, 0, 0]))
    assert [got[1][process] for process, got in enumerate(found)] == addresses
    assert len({len(row) for row in rows}) == 1
    first = np.array(rows[0]).tobytes()[:16]
    assert found[0][0] == first and first != bytes(16)
    alone = [lambda row: [[5]], lambda row: [row], lambda row: [row]]
    again = ucx.connect(shared_by(alone), 0, Worker(addresses[0]), [0])
    assert again[0] != first  # each job has its own secret
    # Secrets of other ranks are ignored.
    assert np.array(rows[1]).tobytes()[:16] == bytes(16)


@pytest.mark.parametrize("sizes", [[5, 0], [5, -8], [5, 1 << 40]])
def test_invalid_worker_addresses_are_refused(sizes):
    with raises(errors.InitializationError, "UCX", "jax.distributed"):
        ucx.connect(shared_by([lambda row: [[each] for each in sizes]]), 0, Worker(b"first"), [0])


def test_processes_agree_on_which_pairs_use_cross_memory_attach():
    workers = [Worker(b"a", {11, 12}), Worker(b"b", {10}), Worker(b"c")]
    pids = [[0, 11, 12], [10, 0, 12], [10, 11, 0]]
    told = {}

    def meet(process, asked):
        """Runs the exchanges of this process, with the others' rows from ``told``."""

        def share(kind):
            def answer(row):
                told[kind, process] = row
                return [told.get((kind, other), row) for other in range(3)]

            return answer

        with config.override(ucx_cma="off" if process in asked else "auto"):
            return ucx.connect(
                shared_by([lambda row: [[1]] * 3, share("guards"), share("reads")]),
                process,
                workers[process],
                pids[process],
            )[2]

    for _ in range(2):  # in the second round, all rows are known
        found = [meet(process, ()) for process in range(3)]
    assert found == [[False, True, False], [True, False, False], [True, False, False]]
    assert [guard for _, guard in workers[1].asked] == [b"a" + b"+" * 15, b"b" + b"+" * 15] + [
        b"c" + b"+" * 15
    ]
    for _ in range(2):
        found = [meet(process, {0}) for process in range(3)]
    # Process 0 sends no validity token, and requests none.
    assert found == [[False] * 3] * 3
    assert [pid for pid, _ in workers[0].asked] == [0, 0, 0]
    assert workers[1].asked[0] == (10, bytes(16))


def test_cross_memory_attach_is_off_without_validity_tokens():
    with config.override(ucx_cma="off"):
        met = shared_by([lambda row: [[1], [1]], lambda row: [row, row]])
        assert ucx.connect(met, 0, Worker(b"a"), [0, 11])[2] == [False, False]


def test_processes_without_ucx_are_named():
    assert ucx.who_lacks([1, 1], "") == ""
    check_text(ucx.who_lacks([0, 1, 0], ""), "process 0, 2", "python -m jaxccomp doctor")
    check_text(ucx.who_lacks([1, 0], "no library"), "process 1", "no library")


@pytest.mark.parametrize(
    "version, wheel, named, taken",
    [
        ("1.18.0", "/wheel/libucp.so.0", "", True),
        ("1.17.0", "/wheel/libucp.so.0", "", True),
        ("1.13.1", "/wheel/libucp.so.0", "", False),
        ("no number", "/wheel/libucp.so.0", "", False),
        ("1.18.0", "", "", False),  # without a wheel the engine finds the system's by itself
        ("1.18.0", "/wheel/libucp.so.0", "/mine/libucp.so", False),
    ],
)
def test_system_ucx_is_used_if_it_is_recent(monkeypatch, version, wheel, named, taken):
    added = []

    class Core:
        @staticmethod
        def add_library_path(name, path):
            added.append((name, path))

    def answer(command, **kwargs):
        assert command[-1] == "libucp.so.0"
        return subprocess.CompletedProcess(command, 0, version + "\n", "")

    monkeypatch.setattr(ucx.ctypes.util, "find_library", lambda name: "libucp.so.0")
    monkeypatch.setattr(libraries, "find", lambda name: wheel)
    monkeypatch.setattr(libraries, "named", lambda name: named)
    monkeypatch.setattr(engine, "load", lambda: Core)
    monkeypatch.setattr(subprocess, "run", answer)
    ucx._prefer_system_library()
    assert added == ([("ucp", "libucp.so.0")] if taken else [])


def test_processes_started_by_mpi_bootstrap_ucx_through_mpi(monkeypatch):
    by = environment.Launcher("Some MPI", 0, 4)
    monkeypatch.setattr(join._mpi, "launcher", lambda: by)
    monkeypatch.setattr(join._mpi, "start", lambda distributed: ("MPI", False))
    monkeypatch.setattr(join.leave, "at_exit", lambda **how: None)
    with config.override(transport="ucx"):
        assert join._start_mpi("auto", distributed=False) == "MPI"
        assert join._start_mpi("auto", distributed=True) is None


class Others:
    """Three processes joined by MPI; some of them have opened UCX."""

    def __init__(self, opened, measured_over=None):
        self.processes, self.mpi, self.unreachable = 3, "MPI", ""
        self.planner = measured_over and types.SimpleNamespace(transport=measured_over)
        self._opened = opened

    def share(self, row):
        return [row, *((each,) for each in self._opened)]


@pytest.mark.parametrize(
    "option,measured_over,by_ucx",
    [
        ("auto", None, False),
        ("auto", "mpi", False),
        ("auto", "ucx", True),
        ("mpi", "ucx", False),
        ("ucx", "mpi", True),
        ("ucx", None, True),
    ],
)
def test_profile_selects_the_transport(monkeypatch, option, measured_over, by_ucx):
    monkeypatch.setattr(ucx, "open_worker", lambda **how: ("worker", ""))
    world = Others([1, 1], measured_over)
    with config.override(transport=option):
        found = ucx.agree_on_ucx(world, world.share)
        assert found == ("worker" if by_ucx else None)
        world.processes = 1
        assert ucx.agree_on_ucx(world, None) is None


@pytest.mark.parametrize(
    "option,facts",
    [("auto", ("profile", 'transport="mpi"')), ("ucx", 'transport is "ucx"')],
    ids=["auto", "ucx"],
)
def test_requested_ucx_must_be_available_on_all_processes(monkeypatch, option, facts):
    monkeypatch.setattr(ucx, "open_worker", lambda **how: ("worker", ""))
    world = Others([1, 0], "ucx")
    with config.override(transport=option):
        with raises(errors.InitializationError, facts, "process 2", "'jaxccomp[ucx]'"):
            ucx.agree_on_ucx(world, world.share)


def test_ranks_with_different_transports_are_refused():
    own = peer_info.own(False)
    with config.override(transport="ucx"):
        other = peer_info.own(False)
    with raises(errors.InitializationError, "transport", "['auto', 'ucx', '?']"):
        peer_info.call(lambda row: [own, other, own._replace(transport=9)], own)


def test_an_unknown_transport_is_refused():
    with raises(errors.InvalidArgumentError, "transport", "'tcp'", "'auto', 'mpi', 'ucx'"):
        config.set("transport", "tcp")

"""How processes without MPI choose a UCX and meet: no UCX is needed here."""

import subprocess

import numpy as np
import pytest

from jaxccomp import config, errors
from jaxccomp._bootstrap import join, launchers, ucx
from jaxccomp._native import engine, libraries


def shared_by(tables):
    """A share that answers one exchange after the other, after having looked at the own row."""
    answers = iter(tables)

    def share(row):
        assert all(isinstance(each, int) for each in row)
        return next(answers)(list(row))

    return share


class Worker:
    """One of UCX's, of a process whose memory no other can read."""

    def __init__(self, address, readable=()):
        self.address = address
        self.readable = readable
        self.asked = None

    def let_read(self):
        return self.address.ljust(16, b"+")[:16]

    def find_readable(self, processes):
        self.asked = processes
        return [pid in self.readable and guard != bytes(16) for pid, guard in processes]


def test_all_get_the_first_ones_secret_and_all_addresses():
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
    assert again[0] != first  # each job's is its own
    # Nobody else's secret counts.
    assert np.array(rows[1]).tobytes()[:16] == bytes(16)


@pytest.mark.parametrize("sizes", [[5, 0], [5, -8], [5, 1 << 40]])
def test_addresses_that_cannot_be_are_refused(sizes):
    with pytest.raises(errors.InitializationError, match="addresses of UCX cannot have"):
        ucx.connect(shared_by([lambda row: [[each] for each in sizes]]), 0, Worker(b"first"), [0])


def test_all_know_who_reads_whose_memory():
    workers = [Worker(b"a", {11, 12}), Worker(b"b", {10}), Worker(b"c")]
    pids = [[0, 11, 12], [10, 0, 12], [10, 11, 0]]
    told = {}

    def meet(process, asked):
        """The exchanges of this process, the others' rows being those of ``told``."""

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

    for _ in range(2):  # the second time each hears what all have said
        found = [meet(process, ()) for process in range(3)]
    assert found == [[False, True, False], [True, False, False], [True, False, False]]
    assert [guard for _, guard in workers[1].asked] == [b"a" + b"+" * 15, b"b" + b"+" * 15] + [
        b"c" + b"+" * 15
    ]
    for _ in range(2):
        found = [meet(process, {0}) for process in range(3)]
    # Nobody is told where the first one's memory is, and it asks for nobody's.
    assert found == [[False] * 3] * 3
    assert [pid for pid, _ in workers[0].asked] == [0, 0, 0]
    assert workers[1].asked[0] == (10, bytes(16))


def test_without_any_guard_nobody_asks():
    with config.override(ucx_cma="off"):
        met = shared_by([lambda row: [[1], [1]], lambda row: [row, row]])
        assert ucx.connect(met, 0, Worker(b"a"), [0, 11])[2] == [False, False]


def test_who_cannot_use_it_is_named():
    assert ucx.who_lacks([1, 1], "") == ""
    assert "process 0, 2 cannot use UCX (`python -m" in ucx.who_lacks([0, 1, 0], "")
    assert "process 1 cannot use UCX (no library)" in ucx.who_lacks([1, 0], "no library")


@pytest.mark.parametrize(
    "version, wheel, named, taken",
    [
        ("1.18.0", "/wheel/libucp.so.0", "", True),
        ("1.17.0", "/wheel/libucp.so.0", "", True),
        ("1.13.1", "/wheel/libucp.so.0", "", False),
        ("no number", "/wheel/libucp.so.0", "", False),
        ("1.18.0", "", "", False),  # the engine opens it by itself
        ("1.18.0", "/wheel/libucp.so.0", "/mine/libucp.so", False),
    ],
)
def test_the_systems_ucx_is_taken_where_it_is_new(monkeypatch, version, wheel, named, taken):
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
    ucx._prefer_the_systems()
    assert added == ([("ucp", "libucp.so.0")] if taken else [])


def test_under_a_launcher_ucx_takes_jax_distributed(monkeypatch):
    by = launchers.Launcher("Some MPI", 0, 4)
    monkeypatch.setattr(join._mpi, "launcher", lambda: by)
    with config.override(transport="ucx"):
        with pytest.raises(errors.InitializationError, match=r"jax\.distributed\.initialize\(\)"):
            join._start_mpi("auto", distributed=False)
        assert join._start_mpi("auto", distributed=True) is None


def test_an_unknown_transport_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="auto, mpi, ucx|'auto', 'mpi', 'ucx'"):
        config.set("transport", "tcp")

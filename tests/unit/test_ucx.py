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


def test_all_get_the_first_ones_secret_and_all_addresses():
    addresses = [b"first", b"a longer address", b"x"]
    rows = []
    found = []
    for process in (0, 1, 2):
        met = shared_by(
            [
                lambda row: [[len(each)] for each in addresses],
                lambda row, process=process: rows.append(row) or [row, row, row],
            ]
        )
        found.append(ucx.connect(met, process, addresses[process]))
    assert [got[1][process] for process, got in enumerate(found)] == addresses
    assert len({len(row) for row in rows}) == 1
    first = np.array(rows[0]).tobytes()[:16]
    assert found[0][0] == first and first != bytes(16)
    again = ucx.connect(shared_by([lambda row: [[5]], lambda row: [row]]), 0, addresses[0])
    assert again[0] != first  # each job's is its own
    # Nobody else's secret counts.
    assert np.array(rows[1]).tobytes()[:16] == bytes(16)


@pytest.mark.parametrize("sizes", [[5, 0], [5, -8], [5, 1 << 40]])
def test_addresses_that_cannot_be_are_refused(sizes):
    with pytest.raises(errors.InitializationError, match="addresses of UCX cannot have"):
        ucx.connect(shared_by([lambda row: [[each] for each in sizes]]), 0, b"first")


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

"""How processes agree on device IPC: what each hands to the others."""

import threading

import pytest

from jaxccomp import config, errors
from jaxccomp._bootstrap import device_ipc


class _World:
    """Exchanges rows between threads that stand for processes."""

    def __init__(self, size):
        self.size = size
        self._barrier = threading.Barrier(size, timeout=30)
        self._rows = [None] * size

    def share(self, process):
        def exchange(row):
            self._rows[process] = list(map(int, row))
            self._barrier.wait()
            rows = list(self._rows)
            self._barrier.wait()
            return rows

        return exchange


class _Core:
    """In the engine's place: imports from whoever offers what begins as its own offer does."""

    def __init__(self, offer):
        self.offer = offer
        self.offers = self.agreed = None

    def offer_ipc(self):
        return self.offer

    def open_ipc(self, offers):
        self.offers = offers
        can = [int(bool(self.offer) and offer[:1] == self.offer[:1]) for offer in offers]
        return can, ["" if each else "another one" for each in can]

    def agree_on_ipc(self, opened):
        self.agreed = opened


def _agree(offers):
    world = _World(len(offers))
    cores = [_Core(offer) for offer in offers]
    reasons = [None] * len(offers)

    def join(process):
        reasons[process] = device_ipc.agree(cores[process], world.share(process), process)

    threads = [threading.Thread(target=join, args=(process,)) for process in range(len(offers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return cores, reasons


def test_every_process_gets_every_offer_and_every_answer():
    offers = [b"a" * 177, b"", b"a\0\xff" + bytes(range(256)), b"b\0\0"]
    cores, reasons = _agree(offers)
    expected = [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]
    for process, core in enumerate(cores):
        assert core.offers == offers
        assert core.agreed == expected
        assert [not reason for reason in reasons[process]] == list(map(bool, expected[process]))


def test_nobody_offers_anything():
    cores, _ = _agree([b"", b""])
    assert cores[0].offers == [b"", b""]
    assert cores[1].agreed == [[0, 0], [0, 0]]


def test_a_process_alone():
    cores, reasons = _agree([b"abc"])
    assert cores[0].agreed == [[1]]
    assert reasons == [[""]]


def test_the_options():
    table = {option.name: option for option in config.options()}
    assert table["device_ipc_bytes"].default == 0
    assert table["device_ipc_bytes"].variable == "JAXCCOMP_DEVICE_IPC_BYTES"
    assert table["device_ipc_memory_bytes"].default == 256 << 20
    with pytest.raises(errors.InvalidArgumentError, match="at least 0"):
        table["device_ipc_bytes"].parse(-1)

"""How processes tell each other which GPUs they have."""

import struct

import pytest

from jaxccomp._bootstrap import shared_gpus


class _Core:
    """In the engine's place."""

    def __init__(self, uuids):
        self.uuids = uuids
        self.told = None

    def cuda_uuids(self):
        return self.uuids

    def set_gpus(self, gpus):
        self.told = gpus


def _agree(hosts, uuids, gpus=None):
    """What every process tells its engine; uuids: by process, a small number for each GPU."""
    cores = [
        _Core([(100 + i, struct.pack("<qq", -uuid, uuid)) for i, uuid in enumerate(own)])
        for own in uuids
    ]
    gpus = gpus or [len(own) for own in uuids]
    rows = []

    def first(row):
        rows.append(row)
        raise StopIteration

    for core in cores:  # what each shares
        with pytest.raises(StopIteration):
            shared_gpus.agree(core, first, hosts, gpus)
    assert len({len(row) for row in rows}) == 1
    for core in cores:
        shared_gpus.agree(core, lambda _: rows, hosts, gpus)
    assert all(core.told == cores[0].told for core in cores)
    return cores[0].told


def test_processes_share_gpus():
    told = _agree([0, 0, 0, 0], [[5], [5], [9], [9]])
    assert told == [(0, 100, 0), (1, 100, 0), (2, 100, 1), (3, 100, 1)]


def test_a_uuid_is_of_its_host():
    assert [gpu for _, _, gpu in _agree([0, 0, 1], [[5], [5], [5]])] == [0, 0, 1]


def test_processes_with_several_gpus_and_with_none():
    told = _agree([0, 0, 0], [[1, 2], [], [2]])
    assert told == [(0, 100, 0), (0, 101, 1), (2, 100, 1)]


def test_gpus_that_cannot_be_used_or_do_not_say_what_they_are():
    assert _agree([0, 0, 0], [[3], [], [0]], gpus=[1, 1, 1]) == [(0, 100, 0)]


@pytest.mark.parametrize(("hosts", "gpus"), [([0], [4]), ([0, 0], [1, 0]), ([0, 1], [1, 1])])
def test_nothing_is_exchanged_where_none_is_shared(hosts, gpus):
    shared_gpus.agree(None, None, hosts, gpus)

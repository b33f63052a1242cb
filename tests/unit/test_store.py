"""Processes of jax.distributed without MPI: they meet over its store, also for NCCL's fake."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from jaxccomp import errors
from jaxccomp._bootstrap import kv_store
from jaxccomp.launch import ports

WORKER = pathlib.Path(__file__).with_name("store_worker.py")
LIBRARY = os.environ.get("JAXCCOMP_STORE_TESTS", "")
needs_library = pytest.mark.skipif(
    not os.path.exists(LIBRARY), reason="JAXCCOMP_STORE_TESTS names no library (make test sets it)"
)


def run(case, ranks):
    """What each process printed; all end well, and in time."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI_COMM"))}
    # Also where UCX is installed.
    env |= {"JAX_PLATFORMS": "cpu", "JAXCCOMP_MPI": "never", "JAXCCOMP_TRANSPORT": "mpi"}
    with ports.reserved() as port:
        started = [
            subprocess.Popen(
                [sys.executable, "-P", str(WORKER), case, *map(str, (rank, ranks, port)), LIBRARY],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
            )
            for rank in range(ranks)
        ]
        try:
            texts = [process.communicate(timeout=120) for process in started]
        finally:
            for process in started:
                process.kill()
    for process, (out, err) in zip(started, texts, strict=True):
        assert process.returncode == 0, out + err
    # XLA prints, too.
    return [json.loads(out.splitlines()[-1]) for out, _ in texts]


@needs_library
def test_ranks_get_the_first_ones_id():
    found = run("meeting", 3)
    assert [each["error"] or each["again"] for each in found] == [""] * 3
    assert len({each["id"] for each in found}) == 1 and found[0]["id"].startswith("fake")


@needs_library
def test_a_rank_that_is_late_is_waited_for():
    found = run("late", 2)
    assert [each["error"] for each in found] == ["", ""]
    assert found[0]["seconds"] > 2


@needs_library
def test_all_get_the_error_of_one():
    for each in run("old", 3):
        assert "rank 1 of 'world' cannot use it: NCCL 2.14.0 is older" in each["error"]
        assert not each["id"]


@needs_library
def test_programs_that_differ_are_refused_everywhere():
    for each in run("differs", 3):
        assert "collective mismatch" in each["error"] and "train.py:9" in each["error"]
        assert not each["id"]


@needs_library
def test_a_rank_that_does_not_come_is_named():
    found = run("missing", 3)
    waits = [each["error"] for each in found if each["error"]]
    assert len(waits) == 2
    assert any("waits for rank 1 of 'world'. They did not come" in error for error in waits)


@needs_library
def test_a_rank_that_has_ended_is_not_waited_for():
    found = run("ended", 3)
    for each in (found[0], found[2]):
        assert "has ended its program" in each["error"] and each["seconds"] < 15


@needs_library
def test_what_others_write_into_the_store_is_an_error():
    found = run("forged", 3)
    for each in (found[0], found[2]):
        assert "a message in the store that cannot be" in each["error"] and each["seconds"] < 15


def test_the_package_without_mpi():
    found = run("package", 3)
    assert [each["rank"] for each in found] == [0, 1, 2]
    assert [each["group"] for each in found] == [[2, 0], [1], [2, 0]]
    assert [each["again"] for each in found] == [True, False, False]
    for each in found:
        assert each["size"] == 3 and each["way"] == ["local", "store"]
        assert each["sum"] == [6, 6]
        assert "mpiexec" in each["error"] and 'backend="nccl"' in each["error"]
        assert "for platform 'cpu'" in each["nccl"]
        assert "pip install 'jaxccomp[ucx]'" in each["error"]
        assert "UCX" in each["native"]


def test_a_process_that_does_not_join_is_named():
    found = run("alone", 3)
    for each in (found[0], found[2]):
        assert "processes [1] have not come" in each["error"]


class FakeClient:
    """A store in memory."""

    def __init__(self):
        self.values = {}

    def key_value_set_bytes(self, key, value, overwrite=False):
        assert overwrite or key not in self.values
        self.values[key] = value

    def blocking_key_value_get_bytes(self, key, milliseconds):
        import jax

        if key in self.values:
            return self.values[key]
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: nobody has set it")

    def key_value_dir_get_bytes(self, folder):
        return [item for item in self.values.items() if item[0].startswith(folder)]


def test_rows_from_the_store_are_not_trusted():
    client = FakeClient()
    assert kv_store.Store(client, 0, 1).share([0], 0, "world", [4, 5], 0.1).tolist() == [[4, 5]]
    for row in (b"", b"12345678", b"1" * 24):
        client = FakeClient()
        client.values["jaxccomp/rows/world/0/1"] = row
        with pytest.raises(errors.InitializationError, match="process 1 has put"):
            kv_store.Store(client, 0, 2).share([0, 1], 0, "world", [4, 5], 0.1)
        client.values["jaxccomp/rows/world/0/all"] = row
        with pytest.raises(errors.InitializationError, match="is not a row of jaxccomp"):
            kv_store.Store(client, 1, 2).share([0, 1], 1, "world", [4, 5], 0.1)
    client = FakeClient()
    with pytest.raises(errors.InitializationError, match=r"processes \[0\] have not come"):
        kv_store.Store(client, 1, 2).share([0, 1], 1, "world", [4, 5], 0.1)

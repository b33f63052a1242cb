"""Processes of jax.distributed without MPI and UCX exchange addresses by its store."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import patience
from golden_errors import raises

from jaxccomp import errors
from jaxccomp._runtime import kv_store
from jaxccomp.launch.processes import reserved_port

WORKER = pathlib.Path(__file__).with_name("kv_store_worker.py")


def run(case, ranks):
    """Returns the output of each process; all must succeed in time."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI_COMM"))}
    # UCX may be installed.
    env |= {"JAX_PLATFORMS": "cpu", "JAXCCOMP_MPI": "never", "JAXCCOMP_TRANSPORT": "mpi"}
    with reserved_port() as port:
        started = [
            subprocess.Popen(
                [sys.executable, "-P", str(WORKER), case, *map(str, (rank, ranks, port))],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
            )
            for rank in range(ranks)
        ]
        try:
            texts = [process.communicate(timeout=patience.seconds(120)) for process in started]
        finally:
            for process in started:
                process.kill()
    for process, (out, err) in zip(started, texts, strict=True):
        assert process.returncode == 0, out + err
    # XLA prints, too.
    return [json.loads(out.splitlines()[-1]) for out, _ in texts]


def test_the_package_without_mpi():
    found = run("package", 3)
    assert [each["rank"] for each in found] == [0, 1, 2]
    assert [each["group"] for each in found] == [[2, 0], [1], [2, 0]]
    assert [each["again"] for each in found] == [True, False, False]
    for each in found:
        assert each["size"] == 3 and each["way"] == ["local"]
        assert each["sum"] == [6, 6]
        assert "mpiexec" in each["error"] and 'backend="xla"' in each["error"]
        assert "pip install 'jaxccomp[ucx]'" in each["error"]
        assert "UCX" in each["native"]


def test_a_process_that_does_not_join_is_named():
    found = run("alone", 3)
    for each in (found[0], found[2]):
        assert "processes [1]" in each["error"] and "init_timeout_seconds" in each["error"]


class FakeClient:
    """A store in memory."""

    def __init__(self):
        self.values = {}

    def key_value_set_bytes(self, key, value, overwrite=False):
        assert overwrite or key not in self.values
        self.values[key] = value

    def blocking_key_value_get_bytes(self, key, milliseconds):
        if key in self.values:
            return self.values[key]
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: nobody has set it")

    def key_value_dir_get_bytes(self, folder):
        return [item for item in self.values.items() if item[0].startswith(folder)]


def test_rows_from_the_store_are_not_trusted():
    client = FakeClient()
    assert kv_store.Store(client).share([0], 0, "world", [4, 5], 0.1).tolist() == [[4, 5]]
    for row in (b"", b"12345678", b"1" * 24):
        client = FakeClient()
        client.values["jaxccomp/rows/world/0/1"] = row
        with raises(errors.InitializationError, "process 1", "jax.distributed", "split()"):
            kv_store.Store(client).share([0, 1], 0, "world", [4, 5], 0.1)
        client.values["jaxccomp/rows/world/0/all"] = row
        with raises(errors.InitializationError, "process 0", "jax.distributed", "split()"):
            kv_store.Store(client).share([0, 1], 1, "world", [4, 5], 0.1)
    client = FakeClient()
    with raises(
        errors.InitializationError,
        "[0, 1]",
        "0.1 s",
        "processes [0]",
        "jaxccomp.init()",
        "init_timeout_seconds",
    ):
        kv_store.Store(client).share([0, 1], 1, "world", [4, 5], 0.1)

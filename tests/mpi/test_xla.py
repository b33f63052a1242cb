"""XLA's own collectives on the engine, in programs of jit with shardings (docs/xla.md)."""

import json
import os
import pathlib
import re
import subprocess
import sys

import patience
import pytest

from jaxccomp import schedules
from jaxccomp._native import engine
from jaxccomp.bench import launch
from jaxccomp.launch import mpiexec
from jaxccomp.launch.processes import reserved_port

WORKER = str(pathlib.Path(__file__).with_name("xla_worker.py"))
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SECONDS = 300
GLOO = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
XLA = ("-m", "jaxccomp", "run", "--xla")

# Gives each rank its number for jax.distributed, then becomes the program.
IN_RANK = """
import os, sys
from jaxccomp._runtime import environment
address, processes, devices, reverses, *program = sys.argv[1:]
rank = environment.launcher().rank
for name, value in os.environ.items():
    if "{rank}" in value:
        os.environ[name] = value.replace("{rank}", str(rank))
process = int(processes) - 1 - rank if reverses == "True" else rank
os.environ["XLA_WORKER"] = f"{address} {process} {processes} {devices}"
os.execv(sys.executable, [sys.executable, "-P", *program])
"""


def run(processes, devices, program, environ=(), reverses=False):
    """Run a program of jax.distributed under mpiexec.

    Returns the exit status, the JSON objects that its processes have printed, and its errors.
    """
    with reserved_port() as port:
        numbers = [f"127.0.0.1:{port}", *map(str, (processes, devices, reverses))]
        done = subprocess.run(
            mpiexec.command(processes, ["-P", "-c", IN_RANK, *numbers, *program]),
            env=os.environ | mpiexec.allow_root() | {"JAX_PLATFORMS": "cpu"} | dict(environ),
            capture_output=True,
            text=True,
            timeout=patience.seconds(SECONDS),
        )
    # mpiexec may join the lines of two processes.
    lines = done.stdout.replace("}{", "}\n{").splitlines()
    found = [json.loads(line) for line in lines if line[:1] == "{"]
    return done.returncode, found, done.stderr


def results(processes, devices, program, environ=(), reverses=False):
    status, found, error = run(processes, devices, program, environ, reverses)
    assert status == 0 and len(found) == processes, error
    return sorted(found, key=json.dumps)


@pytest.mark.parametrize(
    "processes, devices, cases",
    [
        (2, 2, "training"),
        (4, 1, "training"),
        pytest.param(2, 2, "resharding,reductions", marks=pytest.mark.slow),
        pytest.param(2, 1, "resharding,reductions,training", marks=pytest.mark.slow),
        pytest.param(4, 1, "resharding,reductions", marks=pytest.mark.slow),
    ],
)
def test_xla_collectives_return_the_values_of_gloo(processes, devices, cases):
    """Raw and with a lossless policy."""
    expected = results(processes, devices, [WORKER, cases], GLOO)
    assert results(processes, devices, [*XLA, WORKER, cases]) == expected
    assert results(processes, devices, [*XLA, "--policy", "* lossless", WORKER, cases]) == expected


def test_xla_collectives_work_with_reversed_mpi_ranks():
    program = [WORKER, "training"]
    here = results(2, 2, [*XLA, *program], reverses=True)
    assert here == results(2, 2, program, GLOO)


def test_policy_compresses_xla_collectives_and_stats_count_them():
    rules = "allreduce float64 >=48KiB int8; allgather lossless"
    for found in results(2, 2, [*XLA, "--policy", rules, WORKER, "records"]):
        assert {name.rpartition(" ")[2] for name in found} == {"int8", "lossless", "raw"}, found
        assert found["allreduce float64[8192] int8"]["ratio"] < 0.2
        assert found["allreduce float64[4096] raw"]["ratio"] == 0.5
        assert 1 < found["allgather float64[2048] lossless"]["ratio"] < 1.9
        assert all(row["where"] == "jit with shardings" for row in found.values())


def example(program, processes, devices, policy=None):
    """Run an example; return the last loss, and by process the line that it has printed."""
    start = [] if policy is None else [*XLA, "--policy", policy]
    environ = {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_ENABLE_X64": "0", "XLA_FLAGS": ""}
    folders = [str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ["PYTHONPATH"] = os.pathsep.join(folders)
    done = launch.run(
        processes,
        ["-P", *start, str(EXAMPLES / program)],
        env=environ | (GLOO if policy is None else {}),
        timeout_seconds=patience.seconds(SECONDS),
    )
    assert not done.error, done.output
    lines = sorted(
        re.findall(r"process \d+: loss [\d.]+ -> [\d.]+, parameters [0-9a-f]{8}", done.output)
    )
    assert len(lines) == processes, done.output
    first, last = map(float, re.findall(r"loss ([\d.]+) -> ([\d.]+)", lines[0])[0])
    assert last < 0.9 * first, lines
    return last, lines


GRADIENTS = "allreduce float32 int8; reduce_scatter float32 int8"
LARGE_SUMS = "allreduce float32 >=24KiB int8"


@pytest.mark.parametrize(
    "program, processes, devices, gradients",
    [
        ("sharded_fsdp.py", 2, 1, GRADIENTS),
        pytest.param("sharded_data_parallel.py", 2, 1, GRADIENTS, marks=pytest.mark.slow),
        pytest.param("sharded_transformer.py", 2, 2, LARGE_SUMS, marks=pytest.mark.slow),
        pytest.param("sharded_transformer.py", 4, 1, LARGE_SUMS, marks=pytest.mark.slow),
    ],
)
def test_examples_of_shardings_train_as_with_gloo(program, processes, devices, gradients):
    """Raw and lossless with the same bits, int8 gradients with nearly the same loss."""
    if program == "sharded_data_parallel.py":
        pytest.importorskip("flax")
        pytest.importorskip("optax")
    loss, lines = example(program, processes, devices)
    assert example(program, processes, devices, "")[1] == lines
    assert example(program, processes, devices, "* lossless")[1] == lines
    coded, other = example(program, processes, devices, gradients)
    assert other != lines  # the codec was used
    assert abs(coded - loss) <= 0.005 * loss, (coded, loss)


def test_auto_policy_compresses_by_the_profile(tmp_path):
    rates = {f"{name}_bytes_per_second": 4e9 for name in ("encode", "decode", "merge")}
    profile = {
        "hosts": [{"count": 1, "ranks": 2, "cores": 2}],
        "pairs": {"host": {"bytes_per_second": 1e7}},
        "codecs": {"lossless": rates | {"ratio": 1.4}},
    }
    schedules.write_profile(tmp_path / "profile.json", profile)
    environ = {"JAXCCOMP_PROFILE": str(tmp_path / "profile.json")}
    rules = "allreduce float64 >=48KiB auto; allgather auto"
    for found in results(2, 2, [*XLA, "--policy", rules, WORKER, "records"], environ):
        assert {"allreduce float64[8192] lossless", "allreduce float64[4096] raw"} <= set(found)
        assert "allgather float64[2048] lossless" in found, found


def test_auto_policy_without_a_profile_is_refused_on_every_rank():
    for found in results(2, 1, [*XLA, "--policy", "* auto", WORKER, "fails"]):
        assert "python -m jaxccomp tune links" in found["error"], found


@pytest.mark.parametrize(
    "case, named",
    [
        ("raises", "ValueError: on purpose"),
        ("exits", "process 1"),
        ("differs", "float32[1008]"),
        ("kinds", "allgather(float32[1000])"),
        ("stopped", "waits for device 2048 (process 1)"),
    ],
)
def test_failed_xla_collective_raises_a_named_error_on_every_rank(case, named):
    environ = {"JAXCCOMP_TIMEOUT_SECONDS": "5" if case == "stopped" else "60"}
    status, found, error = run(2, 1, [*XLA, WORKER, case], environ)
    assert status != 0, error
    errors = [each for each in found if "error" in each]
    assert errors and all(named in each["error"] for each in errors), (found, error)
    assert all(each["seconds"] < patience.seconds(10) for each in errors), found


def test_compilation_refuses_blocks_of_2_gib():
    for found in results(2, 1, [*XLA, WORKER, "large"]):
        assert "2147483648 bytes" in found["error"] and "jaxccomp.lax" in found["error"]


@pytest.mark.parametrize("case", ["unconnected", "late"])
def test_program_without_import_raises_an_error_with_the_remedy(case):
    status, found, error = run(2, 1, [WORKER, case], engine.xla_variables())
    assert status == 7 and found, error
    for each in found:
        assert "`import jaxccomp` before the first computation" in each["error"], each
        assert case == "unconnected" or "has not been imported" in each["before"], each


def test_different_xla_policies_of_ranks_are_refused():
    environ = {"JAXCCOMP_XLA_POLICY": "* >={rank}B lossless"}
    status, found, error = run(2, 1, [*XLA, WORKER, "fails"], environ)
    assert status == 0 and len(found) == 2, error
    assert all("ranks [1] have other rules" in each["error"] for each in found), found


def test_invalid_xla_policy_ends_the_program_at_its_start():
    command = [sys.executable, "-P", *XLA, "--policy", "* int8", WORKER, "training"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience.seconds(60))
    assert done.returncode != 0 and "'int8' is lossy" in done.stderr, done.stderr

"""XLA's own collectives on the engine: the values are those of gloo."""

import json
import os
import pathlib
import subprocess

import patience
import pytest

from jaxccomp.launch import mpiexec
from jaxccomp.launch.processes import reserved_port

WORKER = str(pathlib.Path(__file__).with_name("xla_worker.py"))
SECONDS = 300


def start(port, processes, devices, program, environ=()):
    """Start the ranks of a program of jax.distributed under mpiexec; one process for all."""
    command = ["-P", "-c", IN_RANK, f"127.0.0.1:{port}", str(processes), str(devices)]
    return subprocess.Popen(
        mpiexec.command(processes, [*command, *program]),
        env=os.environ | mpiexec.allow_root() | {"JAX_PLATFORMS": "cpu"} | dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# Gives the rank its number for jax.distributed, then becomes the program.
IN_RANK = """
import os, sys
from jaxccomp._runtime import environment
address, processes, devices, *program = sys.argv[1:]
rank = environment.launcher().rank
os.environ["XLA_WORKER"] = f"{address} {rank} {processes} {devices}"
os.execv(sys.executable, [sys.executable, "-P", *program])
"""


def answers(process):
    """Wait for the end; return the status, the JSON objects of the ranks and the errors."""
    out, error = process.communicate(timeout=patience.seconds(SECONDS))
    return process.returncode, [json.loads(x) for x in out.splitlines() if x[:1] == "{"], error


def results(processes, devices, program, environ=()):
    with reserved_port() as port:
        status, found, error = answers(start(port, processes, devices, program, environ))
    assert status == 0 and len(found) == processes, error
    return sorted(found, key=json.dumps)


@pytest.mark.parametrize("processes, devices", [(2, 1), (2, 2), (4, 1)])
def test_the_values_are_those_of_gloo(processes, devices):
    program = [WORKER, "resharding,reductions,training"]
    here = results(processes, devices, ["-m", "jaxccomp", "run", "--xla", *program])
    gloo = results(processes, devices, program, {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"})
    assert here == gloo


def failures(case, processes=2, environ=()):
    """Return the status, and what the processes that heard of a failure printed."""
    program = ["-m", "jaxccomp", "run", "--xla", WORKER, case]
    with reserved_port() as port:
        return answers(
            start(port, processes, 1, program, {"JAXCCOMP_TIMEOUT_SECONDS": "20"} | dict(environ))
        )


@pytest.mark.parametrize(
    "case, named",
    [
        ("killed", "process 1"),
        ("raises", "ValueError: on purpose"),
        ("exits", "process 1"),
        ("differs", "float32[1008]"),
    ],
)
def test_every_rank_gets_a_named_error(case, named):
    status, found, error = failures(case)
    assert status != 0, error
    assert found and all(named in each["error"] for each in found), (found, error)
    assert all(each["seconds"] < patience.seconds(10) for each in found), found


def test_blocks_of_2_gib_are_refused_when_they_are_compiled():
    program = ["-m", "jaxccomp", "run", "--xla", WORKER, "large"]
    for found in results(2, 1, program):
        assert "2147483648 bytes" in found["error"] and "jaxccomp.lax" in found["error"]

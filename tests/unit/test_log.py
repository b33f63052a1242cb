"""Messages on stderr, by the option log."""

import logging
import os
import subprocess
import sys

import patience
import pytest

from jaxccomp import config

PROGRAM = """
import jax, jax.numpy as jnp, jaxccomp as jcc
world = jcc.init(mpi="never")
half = world.split(0)
jax.jit(lambda x: jcc.allreduce(x, codec="int8"))(jnp.ones(3))
jax.jit(lambda x: jcc.bcast(x, comm=half))(jnp.ones(3))
"""


def run(level):
    environment = {**os.environ, "JAXCCOMP_LOG": level}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience.seconds(60),
        check=True,
    )
    return [line for line in done.stderr.splitlines() if "jaxccomp[" in line]


def test_process_logs_nothing_by_default():
    assert run("warning") == []


def test_level_info_logs_how_the_process_joined():
    joined, *others = run("info")
    assert "rank 0 of 1" in joined and "instruction set" in joined and "profile none" in joined
    assert any("communicator" in line and "[0]" in line for line in others)


def test_level_debug_logs_each_compiled_call():
    calls = [line for line in run("debug") if "backend" in line]
    assert any("allreduce at <string>:5" in line and "codec int8" in line for line in calls)
    assert any("bcast at <string>:6" in line and "backend native" in line for line in calls)


def test_the_level_can_be_changed_while_a_program_runs():
    handlers = list(config.logger.handlers)
    with config.override(log="debug"):
        assert config.logger.isEnabledFor(logging.DEBUG)
        assert len(config.logger.handlers) == len(handlers) + 1
    assert not config.logger.isEnabledFor(logging.DEBUG)
    assert config.logger.handlers == handlers


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="debug"):
        config.set("log", "verbose")

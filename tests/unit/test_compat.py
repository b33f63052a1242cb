"""`python -m jaxccomp.compat.mpi4jax` without ranks; tests/mpi/test_mpi4jax.py has programs."""

import subprocess
import sys

import pytest

MODULE = "jaxccomp.compat.mpi4jax"


def run(*arguments):
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments,facts",
    [
        ((), ("usage:", "SCRIPT")),
        (("-m",), ("usage:", "-m MODULE")),
        (("-n", "2", "program.py"), ("'-n'", "-m MODULE")),
    ],
)
def test_command_line_without_a_program_exits_with_status_2(arguments, facts):
    ended = run("-m", MODULE, *arguments)
    assert ended.returncode == 2 and not ended.stdout
    for fact in facts:
        assert fact in ended.stderr


def test_help_option_prints_usage_with_an_example():
    ended = run("-m", MODULE, "--help")
    assert ended.returncode == 0 and "usage:" in ended.stdout and "mpiexec -n 2" in ended.stdout


def test_missing_mpi4py_raises_an_error_that_names_the_extra():
    ended = run("-c", f"import sys; sys.modules['mpi4py'] = None; import {MODULE}")
    assert ended.returncode != 0
    assert "MissingPackageError" in ended.stderr and "jaxccomp[mpich]" in ended.stderr

"""Programs of mpi4jax under `python -m jaxccomp.compat.mpi4jax`, which do not know jaxccomp."""

import os
import re

import patience
import pytest

from jaxccomp.bench import launch

pytest.importorskip("mpi4py")

PROGRAM = """
import os, subprocess, sys
assert "jax" not in sys.modules  # the program may still set JAX's environment
os.environ["JAX_ENABLE_X64"] = "1"
from mpi4py import MPI
import jax, jax.numpy as jnp
import mpi4jax
from mpi4jax import allreduce
from mpi4jax._src.utils import HashableMPIType

rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()

@jax.jit
def program(x):
    other = mpi4jax.sendrecv(x, x, source=1 - rank, dest=1 - rank, comm=MPI.COMM_WORLD)
    return other, allreduce(x, op=MPI.SUM)

other, total = program(jnp.full(3, rank + 1.0))
assert other.tolist() == [2.0 - rank] * 3 and total.tolist() == [3.0] * 3
assert total.dtype == jnp.float64 and mpi4jax.__version__.startswith("0.9")
if rank == 0:
    child = "import importlib.util; print(importlib.util.find_spec('mpi4jax').origin)"
    origin = subprocess.check_output([sys.executable, "-c", child], text=True).strip()
    assert origin == mpi4jax.__file__, origin
print("done", __name__, sys.argv[1:], flush=True)
"""


WAITS_IN_MPI4PY = """
from mpi4py import MPI
import jax.numpy as jnp, mpi4jax

if MPI.COMM_WORLD.Get_rank() == 0:
    x = mpi4jax.sendrecv(jnp.ones(2), jnp.zeros(2), source=0, dest=0)
    assert x.tolist() == [1, 1]
MPI.COMM_WORLD.Barrier()
assert mpi4jax.allreduce(1, op=MPI.SUM) == 2
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "mpi4jax_program.py"
    path.write_text(PROGRAM)
    return path


def run(*arguments, **env):
    return launch.run(
        2,
        ["-P", "-m", "jaxccomp.compat.mpi4jax", *map(str, arguments)],
        env=env,
        timeout_seconds=patience.seconds(120),
    )


def test_mpi4jax_script_runs_unchanged(program):
    done = run(program, "--steps", "3")
    assert not done.error, done.output
    assert done.output.count("done __main__ ['--steps', '3']") == 2, done.output


def test_mpi4jax_module_runs_unchanged(program):
    path = [str(program.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = run("-m", program.stem, "a", PYTHONPATH=os.pathsep.join(path))
    assert not done.error, done.output
    assert done.output.count("done __main__ ['a']") == 2, done.output


def test_mpi4jax_debug_prints_a_line_before_and_after_each_operation(program):
    done = run(program, MPI4JAX_DEBUG="1")
    assert not done.error, done.output
    for rank in range(2):
        for name in ("MPI_Sendrecv", "MPI_Allreduce"):
            (key,) = re.findall(rf"r{rank} \| (\w{{8}}) \| {name} with 3 items", done.output)
            assert re.search(
                rf"r{rank} \| {key} \| {name} done with code 0 \(\d\.\d\de[-+]\d+s\)",
                done.output,
            )


def test_a_rank_may_wait_in_mpi4py_before_its_first_operation(tmp_path):
    path = tmp_path / "waits.py"
    path.write_text(WAITS_IN_MPI4PY)
    done = run(path, JAXCCOMP_INIT_TIMEOUT_SECONDS=f"{patience.seconds(20):g}")
    assert not done.error, done.output

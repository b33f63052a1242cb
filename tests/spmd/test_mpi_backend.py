"""`backend="mpi"` in a single process without MPI: its lowering, and its errors."""

import jax
import jax.numpy as jnp
import numpy as np
from golden_errors import raises
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import errors


def total(x, **how):
    return jcc.allreduce(x, backend="mpi", **how)


def test_mpi_backend_of_one_member_needs_no_mpi():
    np.testing.assert_array_equal(jax.jit(total)(np.arange(3.0)), np.arange(3.0))
    text = jax.jit(total).lower(np.ones(3)).as_text()
    assert "@jaxccomp_collective" in text and 'backend = "mpi"' in text


def test_explain_names_the_mpi_backend():
    shown = jcc.explain(total)(jnp.ones(3))
    assert shown.calls[0].backend == "mpi" and " MPI " in str(shown)


def test_mpi_backend_refuses_devices_of_one_process():
    mesh = Mesh(np.array(jax.devices()[:2]), ("i",))
    along = jax.shard_map(
        lambda x: total(x, axis_name="i"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    with raises(errors.EngineUnavailableError, "allreduce", "('i',)", "MPI", 'backend="auto"'):
        jax.jit(along)(jnp.ones(4))

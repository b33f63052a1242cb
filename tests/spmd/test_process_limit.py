"""A process that cannot start more threads gets an error, and does not terminate."""

import os
import subprocess
import sys

import patience
import pytest

PROGRAM = """
import os, resource
import jax, jax.numpy as jnp
import jaxccomp
from jax.sharding import PartitionSpec as P

mesh = jax.sharding.Mesh(jax.devices(), ("x",))
body = lambda x: jaxccomp.allreduce(x, axis_name="x")
step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False))
x = jax.device_put(jnp.ones((2, 4)), jax.sharding.NamedSharding(mesh, P("x")))
step = step.lower(x).compile()
os.setuid(65534)  # no limit holds for root
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    print(jax.block_until_ready(step(x)))
except Exception as error:
    print("told:", error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root, to become another user")
def test_process_limit_raises_an_error_that_names_ulimit():
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=patience.seconds(120),
    )
    assert done.returncode == 0, done.stderr
    assert "told:" in done.stdout and "cannot start a thread" in done.stdout, done.stdout
    assert "ulimit -u" in done.stdout

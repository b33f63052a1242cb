"""Freed memory that the process keeps (option ``retain_memory``)."""

import os
import subprocess
import sys

import pytest

from jaxccomp._native import engine

_PROGRAM = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import jaxccomp as jcc

def anonymous_mib():
    _, resident, shared = map(int, open("/proc/self/statm").read().split()[:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") >> 20

mesh = Mesh(jax.devices(), "x")
@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
def bcast(x):
    return jcc.bcast(x, root=0, axis_name="x")

small, large = jnp.ones(1000), jnp.ones(64 << 18)
jax.block_until_ready(bcast(small))   # loads the engine
base = anonymous_mib()
blocks = [np.ones(64 << 17) for _ in range(int(sys.argv[1]) // 64)]
del blocks
freed = anonymous_mib() - base
jax.block_until_ready(bcast(large))
print(freed, anonymous_mib() - base)
"""


def run(mib):
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, str(mib)],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )
    assert done.returncode == 0, done.stderr
    return map(int, done.stdout.split())


pytestmark = pytest.mark.skipif(not engine.available(), reason="the engine is not installed")


def test_freed_memory_up_to_the_limit_is_retained_for_new_results():
    freed, after = run(512)
    assert freed >= 500
    assert after >= 500


def test_results_above_the_limit_are_returned_to_the_system():
    freed, after = run(4096)
    assert freed >= 4000
    assert after < 2048

"""The smallest program: broadcasts rank 0's values to all ranks, compressed.

mpiexec -n 4 python examples/hello_bcast.py
"""

import jax
import jax.numpy as jnp

import jaxccomp as jcc

world = jcc.init()
share = jax.jit(lambda x: jcc.bcast(x, root=0, codec="lossless"))

mine = jnp.full(3, world.rank + 42.0)
print(f"rank {world.rank} of {world.size}: had {mine}, now has {share(mine)}", flush=True)

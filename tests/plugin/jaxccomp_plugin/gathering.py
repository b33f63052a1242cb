"""A backend with a few operations, only along axes."""

import jax.numpy as jnp
from jax import lax

import jaxccomp


@jaxccomp.register_backend("plugin_gathering")
class Gathering:
    """Implements operations by an allgather."""

    def allgather(x, call):
        return lax.all_gather(x, call.axis_names, axis_index_groups=call.axis_index_groups)

    def alltoall(x, call):
        everything = Gathering.allgather(x, call)
        return lax.dynamic_index_in_dim(everything, _rank(call), axis=1, keepdims=False)

    def allreduce(x, call):
        total = Gathering.allgather(x, call).sum(axis=0)
        return (total / call.size if call.op == "mean" else total).astype(x.dtype)

    def bcast(x, call):
        return Gathering.allgather(x, call)[call.root]

    def reduce(x, call):
        return jnp.where(_rank(call) == call.root, Gathering.allreduce(x, call), 0).astype(x.dtype)


def _rank(call):
    return lax.axis_index(call.axis_names)

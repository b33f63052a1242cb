"""Collectives for JAX that compress what they send and choose how they send it.

* :mod:`jaxccomp.ops`: bcast, allreduce, alltoall ..., also found here;
* :mod:`jaxccomp.lax`: the parallel operations of ``jax.lax``, under their names;
* :mod:`jaxccomp.optim`: for the optimisers of optax;
* :mod:`jaxccomp.sync`: weights from ranks that train to ranks that use them;
* :mod:`jaxccomp.toolkit`: codecs of one's own;
* :mod:`jaxccomp.comm`: joining the other processes, communicators;
* :mod:`jaxccomp.launch`: several processes per GPU, and how many are best;
* :mod:`jaxccomp.codecs`, :mod:`jaxccomp.config`, :mod:`jaxccomp.stats`, :mod:`jaxccomp.trace`,
  :mod:`jaxccomp.schedules`, :mod:`jaxccomp.plan`, :mod:`jaxccomp.errors`.
"""

from jaxccomp import (
    codecs,
    config,
    errors,
    launch,
    lax,
    optim,
    plan,
    schedules,
    stats,
    sync,
    toolkit,
    trace,
)
from jaxccomp._native.launch_places import step
from jaxccomp._native.version import __version__
from jaxccomp.comm import Communicator, check, init, is_initialized, world
from jaxccomp.lax._compress import Compressed, CompressState, compress, compress_with_feedback
from jaxccomp.lax._data_parallel import data_parallel
from jaxccomp.lax._explain import ExplainedCall, Explanation, explain
from jaxccomp.lax._on_shards import on_shards
from jaxccomp.lax._rules import CollectiveRule
from jaxccomp.ops import (
    ANY_SOURCE,
    ANY_TAG,
    allgather,
    allgatherv,
    allreduce,
    allreduce_with_feedback,
    alltoall,
    alltoallv,
    barrier,
    bcast,
    exscan,
    gather,
    gatherv,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_with_feedback,
    scan,
    scatter,
    scatterv,
    send,
    sendrecv,
)
from jaxccomp.toolkit import codec

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "CollectiveRule",
    "Communicator",
    "CompressState",
    "Compressed",
    "ExplainedCall",
    "Explanation",
    "__version__",
    "allgather",
    "allgatherv",
    "allreduce",
    "allreduce_with_feedback",
    "alltoall",
    "alltoallv",
    "barrier",
    "bcast",
    "check",
    "codec",
    "codecs",
    "compress",
    "compress_with_feedback",
    "config",
    "data_parallel",
    "errors",
    "explain",
    "exscan",
    "gather",
    "gatherv",
    "init",
    "is_initialized",
    "launch",
    "lax",
    "on_shards",
    "optim",
    "plan",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_with_feedback",
    "scan",
    "scatter",
    "scatterv",
    "send",
    "sendrecv",
    "schedules",
    "stats",
    "step",
    "sync",
    "toolkit",
    "trace",
    "world",
]

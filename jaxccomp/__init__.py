"""Collectives for JAX that compress what they send and choose how they send it.

* :mod:`jaxccomp.ops`: bcast, allreduce, alltoall ..., also found here;
* :mod:`jaxccomp.lax`: the parallel operations of ``jax.lax``, under their names;
* :mod:`jaxccomp.optim`: for the optimisers of optax;
* :mod:`jaxccomp.sync`: weights from ranks that train to ranks that use them;
* :mod:`jaxccomp.toolkit`: what codecs of one's own are made of;
* :mod:`jaxccomp.comm`: joining the other processes, communicators;
* :mod:`jaxccomp.launch`: several processes per GPU, and how many are best;
* :mod:`jaxccomp.codecs`, :mod:`jaxccomp.config`, :mod:`jaxccomp.stats`, :mod:`jaxccomp.trace`,
  :mod:`jaxccomp.schedules`, :mod:`jaxccomp.plan`, :mod:`jaxccomp.errors`.
"""

from jaxccomp.launch import signals  # noqa: F401  (first: what follows takes seconds)

# isort: split
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
from jaxccomp._native.launches import step
from jaxccomp._native.version import __version__
from jaxccomp._traced.codecs.custom_codec import register_codec
from jaxccomp.comm import Communicator, init, is_initialized, world
from jaxccomp.lax._backend import BackendCall, register_backend
from jaxccomp.lax._compress import Compressed, CompressState, compress, compress_with_feedback
from jaxccomp.lax._explain import ExplainedCall, Explanation, explain
from jaxccomp.lax._rules import CollectiveRule
from jaxccomp.lax._shards import data_parallel, on_shards
from jaxccomp.ops import (
    ANY_SOURCE,
    ANY_TAG,
    Handle,
    allgather,
    allgather_start,
    allgatherv,
    allgatherv_start,
    allreduce,
    allreduce_start,
    allreduce_with_feedback,
    allreduce_with_feedback_start,
    alltoall,
    alltoall_start,
    alltoallv,
    alltoallv_start,
    barrier,
    bcast,
    bcast_start,
    exscan,
    exscan_start,
    gather,
    gather_start,
    gatherv,
    gatherv_start,
    recv,
    recv_start,
    reduce,
    reduce_scatter,
    reduce_scatter_start,
    reduce_scatter_with_feedback,
    reduce_scatter_with_feedback_start,
    reduce_start,
    scan,
    scan_start,
    scatter,
    scatter_start,
    scatterv,
    scatterv_start,
    send,
    send_start,
    sendrecv,
    sendrecv_start,
)
from jaxccomp.schedules._custom import register_algorithm

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BackendCall",
    "CollectiveRule",
    "Communicator",
    "CompressState",
    "Compressed",
    "ExplainedCall",
    "Explanation",
    "Handle",
    "__version__",
    "allgather",
    "allgather_start",
    "allgatherv",
    "allgatherv_start",
    "allreduce",
    "allreduce_start",
    "allreduce_with_feedback",
    "allreduce_with_feedback_start",
    "alltoall",
    "alltoall_start",
    "alltoallv",
    "alltoallv_start",
    "barrier",
    "bcast",
    "bcast_start",
    "codecs",
    "compress",
    "compress_with_feedback",
    "config",
    "data_parallel",
    "errors",
    "explain",
    "exscan",
    "exscan_start",
    "gather",
    "gather_start",
    "gatherv",
    "gatherv_start",
    "init",
    "is_initialized",
    "launch",
    "lax",
    "on_shards",
    "optim",
    "plan",
    "recv",
    "recv_start",
    "reduce",
    "reduce_start",
    "reduce_scatter",
    "reduce_scatter_start",
    "reduce_scatter_with_feedback",
    "reduce_scatter_with_feedback_start",
    "register_algorithm",
    "register_backend",
    "register_codec",
    "scan",
    "scan_start",
    "scatter",
    "scatter_start",
    "scatterv",
    "scatterv_start",
    "send",
    "send_start",
    "sendrecv",
    "sendrecv_start",
    "schedules",
    "stats",
    "step",
    "sync",
    "toolkit",
    "trace",
    "world",
]

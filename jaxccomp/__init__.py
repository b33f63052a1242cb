"""Collectives for JAX that compress what they send and choose how they send it.

* :mod:`jaxccomp.ops`: bcast, allreduce, alltoall ..., also found here;
* :mod:`jaxccomp.lax`: the parallel operations of ``jax.lax``, under their names;
* :mod:`jaxccomp.optim`: for the optimisers of optax;
* :mod:`jaxccomp.sync`: weights from ranks that train to ranks that use them;
* :mod:`jaxccomp.toolkit`: the parts of user-defined codecs;
* :mod:`jaxccomp.comm`: joining the other processes, communicators;
* :mod:`jaxccomp.launch`: several processes per GPU, and how many are best;
* :mod:`jaxccomp.codecs`, :mod:`jaxccomp.config`, :mod:`jaxccomp.stats`, :mod:`jaxccomp.trace`,
  :mod:`jaxccomp.schedules`, :mod:`jaxccomp.plan`, :mod:`jaxccomp.errors`.

``import jaxccomp`` imports no other package, not even JAX: each name is imported on first use
(PEP 562). One exception: if the environment variable ``MPITRAMPOLINE_LIB`` names
``libjaxccomp_xla.so``, it imports JAX and runs XLA's own collectives on the engine.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxccomp._native.version import __version__  # noqa: F401
from jaxccomp.launch import signals  # noqa: F401  (before imports that take seconds)

if TYPE_CHECKING:  # the names of _MODULES, for type checkers and editors
    from jaxccomp import codecs as codecs
    from jaxccomp import config as config
    from jaxccomp import errors as errors
    from jaxccomp import launch as launch
    from jaxccomp import lax as lax
    from jaxccomp import optim as optim
    from jaxccomp import plan as plan
    from jaxccomp import schedules as schedules
    from jaxccomp import stats as stats
    from jaxccomp import sync as sync
    from jaxccomp import toolkit as toolkit
    from jaxccomp import trace as trace
    from jaxccomp._native.launches import step as step
    from jaxccomp._primitives.extensions import BackendCall as BackendCall
    from jaxccomp._primitives.extensions import register_backend as register_backend
    from jaxccomp._traced.codecs.custom_codec import register_codec as register_codec
    from jaxccomp.comm import Communicator as Communicator
    from jaxccomp.comm import init as init
    from jaxccomp.comm import is_initialized as is_initialized
    from jaxccomp.comm import world as world
    from jaxccomp.lax._compress import Compressed as Compressed
    from jaxccomp.lax._compress import CompressState as CompressState
    from jaxccomp.lax._compress import compress as compress
    from jaxccomp.lax._compress import compress_with_feedback as compress_with_feedback
    from jaxccomp.lax._explain import ExplainedCall as ExplainedCall
    from jaxccomp.lax._explain import Explanation as Explanation
    from jaxccomp.lax._explain import explain as explain
    from jaxccomp.lax._rules import CollectiveRule as CollectiveRule
    from jaxccomp.lax._shards import data_parallel as data_parallel
    from jaxccomp.lax._shards import on_shards as on_shards
    from jaxccomp.ops import *  # noqa: F403
    from jaxccomp.schedules._custom import register_algorithm as register_algorithm

# module: the public names that it defines
_MODULES = {
    "jaxccomp._native.launches": ("step",),
    "jaxccomp._traced.codecs.custom_codec": ("register_codec",),
    "jaxccomp.comm": ("Communicator", "init", "is_initialized", "world"),
    "jaxccomp._primitives.extensions": ("BackendCall", "register_backend"),
    "jaxccomp.lax._compress": (
        "CompressState",
        "Compressed",
        "compress",
        "compress_with_feedback",
    ),
    "jaxccomp.lax._explain": ("ExplainedCall", "Explanation", "explain"),
    "jaxccomp.lax._rules": ("CollectiveRule",),
    "jaxccomp.lax._shards": ("data_parallel", "on_shards"),
    "jaxccomp.ops": (
        "ANY_SOURCE",
        "ANY_TAG",
        "Handle",
        "allgather",
        "allgatherv",
        "allreduce",
        "allreduce_with_feedback",
        "alltoall",
        "alltoallv",
        "barrier",
        "bcast",
        "exscan",
        "gather",
        "gatherv",
        "nonblocking",
        "recv",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_with_feedback",
        "scan",
        "scatter",
        "scatterv",
        "send",
        "sendrecv",
    ),
    "jaxccomp.schedules._custom": ("register_algorithm",),
}
_SUBMODULES = (
    "codecs",
    "config",
    "errors",
    "launch",
    "lax",
    "optim",
    "plan",
    "schedules",
    "stats",
    "sync",
    "toolkit",
    "trace",
)
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted([*_MODULE_OF, *_SUBMODULES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"jaxccomp.{name}")
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    operation = name.removesuffix("_start")
    if operation != name and _MODULE_OF.get(operation) == "jaxccomp.ops":
        new = f"jaxccomp.nonblocking(jaxccomp.{operation})(...)"
        import_module("jaxccomp.errors").warn_renamed(f"jaxccomp.{name}(...)", new)
        ops = import_module("jaxccomp.ops")
        return ops.nonblocking(getattr(ops, operation))
    raise AttributeError(f"module 'jaxccomp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _connect_xla() -> None:
    if os.path.basename(os.environ.get("MPITRAMPOLINE_LIB", "")) == "libjaxccomp_xla.so":
        import_module("jaxccomp._primitives.xla_collectives").activate()


_connect_xla()

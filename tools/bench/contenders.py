"""The contenders of a comparison, their settings, and checks that they can run here."""

from __future__ import annotations

import ctypes.util
import dataclasses
import functools
import os
import subprocess
from collections.abc import Callable, Mapping

from jaxccomp._native import engine
from jaxccomp.bench import launch

# By default glibc returns freed pages to the system and maps new ones for each result of XLA; with
# these settings it keeps them. jaxccomp keeps its own pages (option retain_memory).
_KEEP_PAGES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_ARENA_MAX": "1",
}


def _always(python: str) -> str:
    del python
    return ""


@functools.cache
def _has_module(name: str, python: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"
    return subprocess.run([python, "-P", "-c", code], capture_output=True).returncode == 0


def _needs_mpi4jax(python: str) -> str:
    if _has_module("mpi4jax", python):
        return ""
    return (
        "mpi4jax is not installed; build it: `pip install --no-cache-dir mpi4jax` with mpicc on "
        "the PATH (and CUDA_ROOT=<CUDA toolkit> if nvcc is on the PATH)"
    )


def _needs_wrapper(python: str) -> str:
    del python
    if os.environ.get("MPITRAMPOLINE_LIB"):
        return ""
    return "JAX reaches MPI through MPIwrapper; name its library in MPITRAMPOLINE_LIB"


def _needs_ucx(python: str) -> str:
    named = os.environ.get("JAXCCOMP_LIBUCP") or ctypes.util.find_library("ucp")
    if named or _has_module("libucx", python):
        return ""
    return "there is no UCX; `pip install 'jaxccomp[ucx]'` brings it"


@dataclasses.dataclass(frozen=True)
class Contender:
    """A contender: its name in worker.py, and the settings with which it is fastest."""

    name: str
    description: str
    missing: Callable[[str], str] = _always
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    only: tuple[str, ...] = ()  # its operations; empty: all
    lacks: tuple[str, ...] = ()  # operations that it does not have
    jitted_peer: bool = False  # another package, called from jitted functions


# The first three always run: jaxccomp and two lower bounds.
TABLE = (
    Contender("jaxccomp", "this package, one operation per jitted call"),
    Contender("empty", "a jitted call of x + 1: the overhead of JAX", only=("empty",)),
    Contender("memory", "the minimum of reads and writes of an operation, in NumPy"),
    Contender("mpi4py", "MPI on NumPy buffers, without JAX"),
    Contender("mpi4py-fresh", "the same with results in new memory, like XLA's"),
    Contender(
        "mpi4jax",
        "mpi4jax, one operation per jitted call",
        _needs_mpi4jax,
        lacks=("reduce_scatter",),
        jitted_peer=True,
    ),
    Contender(
        "mpi4jax-malloc",
        "mpi4jax with glibc told to keep its pages",
        _needs_mpi4jax,
        env=_KEEP_PAGES,
        lacks=("reduce_scatter",),
        jitted_peer=True,
    ),
    Contender(
        "jaxccomp-ucx",
        "this package, values over UCX instead of MPI",
        _needs_ucx,
        env={"JAXCCOMP_TRANSPORT": "ucx"},
    ),
    Contender(
        "jaxccomp-xla",
        "jax.lax collectives over jax.distributed, run by this package (docs/xla.md)",
        env=engine.xla_variables() if engine.available() else {},
    ),
    Contender("jax-gloo", "jax.lax collectives over jax.distributed, gloo", jitted_peer=True),
    Contender(
        "jax-mpi", "jax.lax collectives over jax.distributed, MPI", _needs_wrapper, jitted_peer=True
    ),
)

# Values of --peers: some names stand for several settings of one peer.
PEERS: Mapping[str, tuple[str, ...]] = {
    "jaxccomp-ucx": ("jaxccomp-ucx",),
    "jaxccomp-xla": ("jaxccomp-xla",),
    "mpi4py": ("mpi4py", "mpi4py-fresh"),
    "mpi4jax": ("mpi4jax", "mpi4jax-malloc"),
    "jax-gloo": ("jax-gloo",),
    "jax-mpi": ("jax-mpi",),
}


def find(name: str) -> Contender:
    """The row of that name."""
    return next(row for row in TABLE if row.name == name)


def why_missing(contender: Contender, python: str) -> str:
    """Why a contender cannot run with this interpreter; empty when it can."""
    try:
        launch.mpiexec(python)
        launch.vendor(python)
    except RuntimeError as error:
        return str(error)
    return contender.missing(python)

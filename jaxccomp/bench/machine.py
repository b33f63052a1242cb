"""The properties of the machine on which figures depend, without names of hosts or users."""

from __future__ import annotations

import os
import platform
import sys
import zlib
from typing import Any

import jax

from jaxccomp._native.version import __version__
from jaxccomp.bench import launch

# The instruction sets of the engine's kernels, widest first: flag in /proc/cpuinfo, name.
_INSTRUCTION_SETS = (("avx512_vbmi2", "AVX-512 VBMI2"), ("avx512bw", "AVX-512"), ("avx2", "AVX2"))


def processor() -> str:
    """The processor's name, and the widest instruction set that the engine can use."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        lines = []
    facts = {name.strip(): value.strip() for name, _, value in lines}
    flags = facts.get("flags", "").split()
    sets = [name for flag, name in _INSTRUCTION_SETS if flag in flags]
    limit = os.environ.get("JAXCCOMP_INSTRUCTION_SET", "auto")
    used = sets[:1] if limit == "auto" else [f"limited to {limit}"]
    return ", ".join([facts.get("model name") or platform.machine(), *used])


def kernel() -> int:
    """A number for the running kernel: containers of one machine have the same; 0 if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return zlib.crc32(file.read().encode())
    except OSError:  # not Linux
        return 0


def facts(mpi_python: str = sys.executable) -> dict[str, Any]:
    """This machine and the versions of its software; the MPI is the one of ``mpi_python``."""
    return {
        "jaxccomp": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "mpi": " ".join(launch.vendor(mpi_python)),
        "cores": os.cpu_count(),
        "processor": processor(),
        "system": platform.system() + " " + platform.release(),
    }

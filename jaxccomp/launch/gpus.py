"""Finds the GPUs that this process may use, without JAX or CUDA: a query would initialise CUDA."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

_PROC = pathlib.Path("/proc/driver/nvidia/gpus")
_QUERY = ("--query-gpu=uuid,pci.bus_id", "--format=csv,noheader")
_TIMEOUT_SECONDS = 60.0  # a sleeping driver takes seconds to start


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
      name: its name in CUDA_VISIBLE_DEVICES: a UUID, or the number in the caller's environment.
      bus: its PCI address in sysfs format, such as "0000:3b:00.0"; "" if unknown.
    """

    name: str
    bus: str = ""


@dataclasses.dataclass(frozen=True)
class Found:
    """The GPUs, in the order of CUDA_VISIBLE_DEVICES if set, and a description of the search."""

    gpus: tuple[Gpu, ...]
    how: str


def find(environ: Mapping[str, str] = os.environ, proc: pathlib.Path = _PROC) -> Found:
    """Find GPUs with nvidia-smi, or in /proc if there is no nvidia-smi.

    CUDA_VISIBLE_DEVICES restricts and orders them as in CUDA: numbers, UUIDs or prefixes of UUIDs,
    up to the first that does not exist.
    """
    command = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if command:
        gpus, how = _ask(command)
    else:
        gpus = _read(proc)
        how = f"nvidia-smi is not on PATH, and {proc} lists {len(gpus) or 'no'} GPU(s)"
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None and gpus:
        gpus = _visible(gpus, wanted)
        how += f"; CUDA_VISIBLE_DEVICES={wanted!r} leaves {len(gpus) or 'none'} of them"
    return Found(tuple(gpus), how)


def _ask(command: str) -> tuple[list[Gpu], str]:
    try:
        done = subprocess.run(
            [command, *_QUERY], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"{command} failed ({error})"
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        return [], f"{command} failed ({said[0] if said else f'status {done.returncode}'})"
    rows = [line.split(",") for line in done.stdout.splitlines() if line.startswith("GPU-")]
    gpus = [Gpu(uuid.strip(), _sysfs_bus(bus)) for uuid, bus in rows]
    return gpus, f"{command} lists {len(gpus) or 'no'} GPU(s)"


def _read(proc: pathlib.Path) -> list[Gpu]:
    gpus = []
    for path in sorted(proc.glob("*/information")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"^GPU UUID:\s*(GPU-\S+)", text, re.MULTILINE):
            gpus.append(Gpu(match[1], _sysfs_bus(path.parent.name)))
    return gpus


def _sysfs_bus(bus: str) -> str:
    """Convert nvidia-smi's PCI address, with a domain of eight digits, to sysfs's, with four."""
    domain, _, rest = bus.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _visible(gpus: Sequence[Gpu], wanted: str) -> list[Gpu]:
    found = []
    for name in (each.strip() for each in wanted.split(",")):
        if name.isdigit() and int(name) < len(gpus):
            # Keep the number: CUDA maps it to a GPU by CUDA_DEVICE_ORDER.
            found.append(Gpu(name, gpus[int(name)].bus))
        elif name.startswith("MIG-"):
            found.append(Gpu(name))
        elif name.startswith("GPU-") and any(gpu.name.startswith(name) for gpu in gpus):
            found.append(next(gpu for gpu in gpus if gpu.name.startswith(name)))
        else:
            break
    return found

"""Starts ranks that share this machine's GPU, and prints their lines; for the scripts here.

Each script prints JSON objects, one per line, also for each case that cannot run, with the reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

import process
import sources

NO_DEVICE = 77
# Fraction of the GPU's memory for JAX's arrays of all ranks; the engine allocates from the rest.
MEMORY = 0.6
NEEDED = ("jax", "jaxlib", "numpy", "mpi4py")
_FINDS_GPU = "import jax; print(jax.devices('cuda')[0].device_kind)"
_FINDS_ENGINE = "from jaxccomp._native import platforms; print(platforms.why_no_cuda())"
_MAX_SECONDS = 120  # limit of each of these


def parser(
    description: str, seconds: float, *, device: bool = True, dry_run: bool = True
) -> argparse.ArgumentParser:
    """A parser with the scripts' common arguments.

    Args:
      description: the script's docstring; its first line is the help text.
      seconds: default time limit.
      device: add --device, for scripts that also run on the CPU.
      dry_run: add --dry-run.
    """
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("build")
    if device:
        made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--seconds", type=float, default=seconds, help="default: %(default)s")
    if dry_run:
        made.add_argument("--dry-run", action="store_true", help="only say what would be run")
    return made


def environment(build: pathlib.Path, device: str, ranks: int = 1) -> dict[str, str]:
    """Environment of ranks: paths to the engine of ``build``, and a share of the GPU's memory."""
    paths = {
        "PYTHONPATH": [
            str(sources.ROOT),
            str(build / "module"),
            os.environ.get("PYTHONPATH", ""),
        ],
        "LD_LIBRARY_PATH": [str(build), os.environ.get("LD_LIBRARY_PATH", "")],
    }
    joined = {name: os.pathsep.join(filter(None, each)) for name, each in paths.items()}
    platforms = "cpu" if device == "cpu" else "cuda,cpu"
    env = dict(os.environ, **joined, JAX_PLATFORMS=platforms, TF_CPP_MIN_LOG_LEVEL="2")
    env.pop("XLA_CLIENT_MEM_FRACTION", None)  # another name of the variable set below
    return env | {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{MEMORY / ranks:.3f}"}


def no_gpu(device: str) -> str:
    """Why nothing can run on the device; empty for "cpu", or if there is a GPU."""
    if device == "cpu" or sources.module("launch.gpus").find().gpus:
        return ""
    return f"no NVIDIA GPU here: {sources.module('launch.gpus').find().how}"


def why_not(device: str, env: Mapping[str, str]) -> str:
    """Why ranks cannot run here; empty if they can."""
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        return f"{sys.executable} has no {', '.join(lacking)}"
    if device == "cpu":
        return ""
    gpu = _ask(_FINDS_GPU, env)
    if gpu.returncode:
        return f"JAX finds no GPU: {last_line(gpu.stderr)}"
    say(device=gpu.stdout.strip())
    engine = _ask(_FINDS_ENGINE, env)
    if engine.returncode:
        return f"jaxccomp does not start: {last_line(engine.stderr)}"
    return engine.stdout.strip()


def _ask(code: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs Python code in another process, so that this one allocates no GPU memory."""
    command = [sys.executable, "-P", "-c", code]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, env=dict(env), timeout=_MAX_SECONDS
        )
    except subprocess.TimeoutExpired:
        said = f"no answer in {_MAX_SECONDS} s"
        return subprocess.CompletedProcess(command, 1, "", said)


def command(ranks: int, program: Sequence[str]) -> list[str] | None:
    """The command that starts a program as ``ranks`` ranks; None without an mpiexec.

    A single rank needs no mpiexec.
    """
    beside = pathlib.Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        return list(program) if ranks == 1 else None
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    open_mpi = "Open MPI" in version or "OpenRTE" in version
    more = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] if open_mpi else []
    return [found, *more, "-n", str(ranks), *program]


NO_MPIEXEC = "there is no mpiexec on PATH or beside Python"


def run(todo: Sequence[str], env: Mapping[str, str], name: str, seconds: float) -> int:
    """Runs ranks and prints their lines; returns 1 after a failure."""
    done = process.run(todo, env, seconds, "JAXCCOMP_GPU_RANKS")
    for row in rows(done.output):
        say(**row)
    if done.wrong:
        say(wrong=name, reason=done.wrong)
    return int(bool(done.wrong))


def rows(output: str) -> Iterator[dict]:
    """The JSON objects among lines of output."""
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:  # a partial line of a killed rank
                continue


def say(**row: object) -> None:
    print(json.dumps(row), flush=True)


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"

"""Starts ranks that share this machine's GPU, and passes on what they print.

For the scripts beside this file. Each prints JSON objects, one per line; what it could not run is
such a line too, with the reason.
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
# Of the GPU's memory, for the arrays of all ranks; the engine takes its own beside it.
MEMORY = 0.6
NEEDED = ("jax", "jaxlib", "numpy", "mpi4py")
_FINDS_GPU = "import jax; print(jax.devices('cuda')[0].device_kind)"
_FINDS_ENGINE = "from jaxccomp._native import cuda; print(cuda.why_missing())"
_MOST_SECONDS = 120  # to ask for those


def parser(
    description: str, seconds: float, *, device: bool = True, dry_run: bool = True
) -> argparse.ArgumentParser:
    """The arguments that the scripts share; each adds its own.

    Args:
      description: the script's text, of which the first line is shown.
      seconds: that it takes at most by default.
      device: whether it also runs on the CPU, to try the script itself.
      dry_run: whether it can say what it would run.
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
    """What ranks are started with: the engine of ``build``, if there, and a share of the memory."""
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
    env.pop("XLA_CLIENT_MEM_FRACTION", None)  # the other name of what is set here
    return env | {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{MEMORY / ranks:.3f}"}


def no_gpu(device: str) -> str:
    """Why nothing can be run on that device; empty when it can be tried."""
    if device == "cpu" or sources.module("launch.gpus").find().gpus:
        return ""
    return f"no NVIDIA GPU here: {sources.module('launch.gpus').find().how}"


def why_not(device: str, env: Mapping[str, str]) -> str:
    """What is missing to run ranks; empty when nothing is."""
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
    """Runs a line of Python in a process of its own, so that this one holds no memory of a GPU."""
    command = [sys.executable, "-P", "-c", code]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, env=dict(env), timeout=_MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        said = f"no answer in {_MOST_SECONDS} s"
        return subprocess.CompletedProcess(command, 1, "", said)


def command(ranks: int, program: Sequence[str]) -> list[str] | None:
    """What starts a program as that many ranks; None without an mpiexec.

    A single rank needs none.
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
    """Runs ranks, and passes their lines on; 1 where something was wrong."""
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
            except ValueError:  # cut off when its rank was ended
                continue


def say(**row: object) -> None:
    print(json.dumps(row), flush=True)


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"

"""Collectives on this machine's GPU, under mpiexec: compared with the CPU's, and measured.

    python tests/gpu/collectives.py BUILD_FOLDER [--device cpu] [--ranks 1,2,4] [--mib 64,256]

Prints one JSON object per line; what cannot be run is one, too. All ranks share one GPU. The
engine is the one of BUILD_FOLDER (`make gpu-module`) where there is one, else the installed one.
Exits with 77 where there is no GPU. `--device cpu` runs the same on the CPU, to check this program.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

NO_DEVICE = 77
ROOT = pathlib.Path(__file__).parents[2]
HERE = pathlib.Path(__file__).parent
# Of the GPU's memory, for the arrays of all ranks; the engine takes its own beside it.
MEMORY = 0.6
LIMITS = {"compare": 90, "measure": 75}
_NEEDED = ("jax", "jaxlib", "numpy", "mpi4py")
_FINDS_GPU = "import jax; print(jax.devices('cuda')[0].device_kind)"
_FINDS_ENGINE = "from jaxccomp import _cuda; print(_cuda.why_missing())"


def main() -> int:
    """Runs what can be run, and says what cannot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--mib", default="64,256")
    asked = parser.parse_args()
    base = environment(pathlib.Path(asked.build).resolve(), asked.device)
    if asked.device == "cuda" and not shutil.which("nvidia-smi"):
        print("collectives: nvidia-smi is not on PATH: no NVIDIA GPU here", file=sys.stderr)
        return NO_DEVICE
    if missing := why_not(asked.device, base):
        say(not_run="collectives", reason=missing)
        return 0
    worst = 0
    for ranks in map(int, asked.ranks.split(",")):
        launcher = command(ranks)
        if launcher is None:
            say(not_run=f"{ranks} ranks", reason="there is no mpiexec on PATH or beside Python")
            continue
        share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{MEMORY / ranks:.3f}"}
        for part, program in (
            ("compare", "collectives_compare"),
            ("measure", "collectives_measure"),
        ):
            arguments = [sys.executable, "-P", str(HERE / f"{program}.py"), asked.device]
            arguments += [asked.mib] if part == "measure" else []
            worst |= run(
                [*launcher, *arguments], base | share, f"{part}, {ranks} ranks", LIMITS[part]
            )
    return worst


def environment(build: pathlib.Path, device: str) -> dict[str, str]:
    """What the ranks are started with."""
    paths = {
        "PYTHONPATH": [str(ROOT), str(build / "module"), os.environ.get("PYTHONPATH", "")],
        "LD_LIBRARY_PATH": [str(build), os.environ.get("LD_LIBRARY_PATH", "")],
    }
    joined = {name: os.pathsep.join(filter(None, each)) for name, each in paths.items()}
    platforms = "cpu" if device == "cpu" else "cuda,cpu"
    env = dict(os.environ, **joined, JAX_PLATFORMS=platforms, TF_CPP_MIN_LOG_LEVEL="2")
    env.pop("XLA_CLIENT_MEM_FRACTION", None)  # the other name of what each run sets
    return env


def why_not(device: str, env: dict[str, str]) -> str:
    """What is missing to run anything; empty when nothing is."""
    lacking = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        return f"{sys.executable} has no {', '.join(lacking)}"
    if device == "cpu":
        return ""
    gpu = ask(_FINDS_GPU, env)
    if gpu.returncode:
        return f"JAX finds no GPU: {last_line(gpu.stderr)}"
    say(device=gpu.stdout.strip())
    engine = ask(_FINDS_ENGINE, env)
    if engine.returncode:
        return f"jaxccomp does not start: {last_line(engine.stderr)}"
    return engine.stdout.strip()


def ask(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a line of Python in a process of its own, so that this one holds no memory of a GPU."""
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env, timeout=120
    )


def command(ranks: int) -> list[str] | None:
    """What starts that many ranks; None without an mpiexec."""
    beside = pathlib.Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        return [] if ranks == 1 else None
    open_mpi = (
        "Open MPI" in subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    )
    more = ["--allow-run-as-root", "--oversubscribe"] if open_mpi else []
    return [found, *more, "-n", str(ranks)]


def run(todo: list[str], env: dict[str, str], name: str, limit: int) -> int:
    """Runs ranks, and passes their lines on; 1 where something was wrong."""
    job = subprocess.Popen(
        todo,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    wrong = ""
    try:
        output, said = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        # The launcher ends its ranks when it is asked to; whoever is left would keep the GPU.
        wrong = f"not done in {limit} s"
        os.killpg(job.pid, signal.SIGTERM)
        try:
            output, said = job.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            output, said = job.communicate()
    show(output)
    if job.returncode and not wrong:
        wrong = f"exit status {job.returncode}"
    if wrong:
        say(wrong=name, reason=f"{wrong}: {said.strip()[-1500:]}")
    return int(bool(wrong))


def show(output: str) -> None:
    for line in output.splitlines():
        if line.startswith("{"):
            print(line, flush=True)


def say(**row: object) -> None:
    print(json.dumps(row), flush=True)


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"


if __name__ == "__main__":
    sys.exit(main())

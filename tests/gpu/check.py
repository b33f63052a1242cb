"""Checks and measures on this machine's GPU what can be, and writes docs/results/gpu/*.json.

    python tests/gpu/check.py BUILD_FOLDER OUTPUT_FOLDER [PART ...]

The parts are the rows of PARTS; all of them run when none is named. Each part's file says which
device it ran on, what was found, and what could not be run and why. Exits with 1 where something is
wrong, and with 77 where there is no GPU.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

NO_DEVICE = 77
# What the sanitizers run: they slow kernels down a hundredfold.
SANITIZED = ("int8", "onebit", "compute", "lossless")

# The commands of a part, given the C++ program; or why it cannot be run here.
Commands = list[list[str]] | str


@dataclasses.dataclass(frozen=True)
class Part:
    """What is checked in one go, and the seconds that it may take."""

    what: str
    seconds: int
    commands: Callable[[str], Commands]


def sanitized(tool: str) -> Callable[[str], Commands]:
    """The kernels under a tool of compute-sanitizer."""

    def commands(program: str) -> Commands:
        sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not pathlib.Path(sanitizer).exists():
            return "no compute-sanitizer is installed"
        return [
            [sanitizer, "--tool", tool, "--error-exitcode", "1", program, "compare", spec]
            for spec in SANITIZED
        ]

    return commands


def nvcomp(program: str) -> Commands:
    """With the library that JAXCCOMP_LIBNVCOMP or a wheel has."""
    return [[program, "all", "nvcomp"]] if find_nvcomp() else "nvCOMP is not found"


def collectives(program: str) -> Commands:
    """Starts its ranks by itself."""
    script = pathlib.Path(__file__).with_name("collectives.py")
    return [[sys.executable, "-P", str(script), str(pathlib.Path(program).parent)]]


def nccl(program: str) -> Commands:
    """With 2 ranks all that is asked for, with 4 less: NCCL does not promise that as many work."""
    mpiexec = pathlib.Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists() or importlib.util.find_spec("jaxccomp") is None:
        return "jaxccomp is not installed in the Python that runs this, or has no mpiexec beside it"
    script = str(pathlib.Path(__file__).with_name("nccl.py"))
    return [
        [str(mpiexec), "-n", str(ranks), sys.executable, "-P", script, str(programs)]
        for ranks, programs in ((2, 1000), (4, 200))
    ]


def traced(program: str) -> Commands:
    """In a process of its own, as it takes flags of XLA."""
    if importlib.util.find_spec("jaxccomp") is None:
        return "jaxccomp is not installed in the Python that runs this"
    return [[sys.executable, "-P", str(pathlib.Path(__file__).with_name("traced.py"))]]


# The first four are to end within nine minutes together, each of the others within as many.
PARTS = {
    "kernels": Part("kernels and the device: bits, rates", 180, lambda program: [[program]]),
    "nvcomp": Part("nvCOMP's codecs beside lossless: bits, rates", 120, nvcomp),
    "memcheck": Part("kernels under compute-sanitizer", 120, sanitized("memcheck")),
    "racecheck": Part("kernels under compute-sanitizer", 120, sanitized("racecheck")),
    "collectives": Part("jitted collectives of 1, 2 and 4 ranks on the GPU", 500, collectives),
    "traced": Part("the traced plane's codecs: bits, CUDA graphs, rates", 240, traced),
    "nccl": Part("random programs of NCCL's and the engine's operations", 240, nccl),
}


def find_nvcomp() -> str:
    """The path of libnvcomp.so.6 that the package takes; empty where it is not found."""
    file = pathlib.Path(__file__).parents[2] / "jaxccomp/_libraries.py"
    spec = importlib.util.spec_from_file_location("_libraries", file)
    assert spec is not None and spec.loader is not None
    libraries = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(libraries)
    return libraries.find("nvcomp")


def run(name: str, program: str) -> tuple[dict, int]:
    """Runs a part: what goes into its file, and its exit status."""
    part = PARTS[name]
    start, status, lines, failures = time.monotonic(), 0, [], []
    todo = part.commands(program)
    if isinstance(todo, str):
        return {"part": name, "not_run": todo}, 0
    library = find_nvcomp()
    environment = os.environ | ({"JAXCCOMP_LIBNVCOMP": library} if library else {})
    for command in todo:
        left = part.seconds - (time.monotonic() - start)
        shown = " ".join(map(str, [pathlib.Path(command[0]).name, *command[1:]]))
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=max(left, 1), env=environment
            )
        except subprocess.TimeoutExpired:
            failures.append(f"{shown}: not done in {part.seconds} s, with all before it")
            status = status or 1
            break
        if done.returncode == NO_DEVICE:
            return {"part": name, "not_run": done.stderr.strip()}, NO_DEVICE
        if done.returncode:
            status = 1
            failures.append(f"{shown}: exit status {done.returncode}: {done.stderr[-2000:]}")
        lines += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    seconds = round(time.monotonic() - start, 1)
    return {"part": name, "seconds": seconds, "failures": failures, "lines": lines}, status


def main(build: str, output: str, *chosen: str) -> int:
    """Runs the chosen parts, or all; returns the exit status."""
    unknown = set(chosen) - set(PARTS)
    if unknown:
        print(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
        return 2
    program = str(pathlib.Path(build, "jaxccomp_gpu_tests").resolve())
    folder = pathlib.Path(output)
    worst = 0
    for name in chosen or PARTS:
        found, status = run(name, program)
        if status == NO_DEVICE:
            print(found["not_run"])
            return NO_DEVICE
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found, indent=1) + "\n"
        pathlib.Path(folder, f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name} ({PARTS[name].what}): {summary(found)}")
        worst = max(worst, status)
    return worst


def summary(found: dict) -> str:
    """What came of a part, in a line."""
    if "not_run" in found:
        return f"not run: {found['not_run']}"
    said: Sequence[str] = found["failures"] or ["good"]
    return f"{found['seconds']} s, {len(found['lines'])} results; {'; '.join(said)}"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

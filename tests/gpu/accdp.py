"""Measures which number of data-parallel processes on one GPU is fastest, and its alternatives.

    python tests/gpu/accdp.py BUILD_FOLDER [--device cpu] [--models mlp-small,...]
                              [--counts 1,2,4,8] [--rounds 3] [--seconds S] [--dry-run]

First times the allreduce of the largest number of processes alone (accdp_allreduce.py), by codec
and algorithm. Then runs `python -m jaxccomp tune ranks-per-gpu` on accdp_train.py for each model
(models.py), at equal batch: K processes with and without MPS, `vmap` over K replicas, and a larger
batch. Prints one JSON object per line: the times of an allreduce; the measurements of a model, the
best number of processes, and the alternatives that are faster. It leaves running MPS daemons alone,
starts none that outlives it, and does not change the GPU's compute mode. Exits with 77 without a
GPU. `--device cpu` runs on the CPU, to test this program.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import sys
import tempfile
from typing import Any

import process
import ranks
import sources

MIN_SECONDS = 40  # for a model


def table() -> dict[str, Any]:
    """The models; imported late because they need JAX."""
    return importlib.import_module("models").MODELS


def told(name: str, about: str, found: dict) -> dict:
    """A line for a model: the measurements of `tune`, the best number of processes, its rivals."""
    rows = [row for row in found["cases"] if row.get("samples_per_second")]
    base = found["cases"][0].get("samples_per_second")
    same = [row for row in rows if row["device_batch"] == found["cases"][0]["device_batch"]]
    shared = [row for row in same if row["processes"] > 1]
    rivals = [row for row in rows if row["processes"] == 1 and row is not found["cases"][0]]
    best = max(shared, key=lambda row: row["samples_per_second"], default=None)
    line = {"model": name, "about": about, "verdict": found["verdict"]}
    if best and base:
        line |= {"best_processes": best["name"], "ratio": round(best["ratio"], 3)}
        line["rivals"] = {row["name"]: round(row["ratio"], 3) for row in rivals}
        ahead = [
            row["name"] for row in rivals if row["samples_per_second"] > best["samples_per_second"]
        ]
        line["loses_to"] = ahead + (["1 process"] if best["ratio"] < 1 else [])
    return line | {"left_out": found["left_out"], "cases": found["cases"]}


def measure(name: str, asked: argparse.Namespace, seconds: float, cache: str) -> int:
    """Measures a model within the seconds; returns 1 after a failure."""
    clock, build = process.Clock(seconds), pathlib.Path(asked.build).resolve()
    env = ranks.environment(build, asked.device)
    env.pop("XLA_PYTHON_CLIENT_MEM_FRACTION")  # `tune` divides the memory
    # Later rounds load programs that the first round compiled.
    env |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    train = pathlib.Path(__file__).with_name("accdp_train.py")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "tune.json")
        command = [sys.executable, "-P", "-m", "jaxccomp", "tune", "ranks-per-gpu"]
        command += ["--ranks-per-gpu", asked.counts, "--rounds", str(asked.rounds)]
        command += ["--batch", str(asked.batch or table()[name].batch)]
        command += ["--device", "cpu" if asked.device == "cpu" else "gpu", "--json", str(out)]
        # Leave time to end the last run, which may be killed at its limit.
        command += ["--within", str(max(clock.left - 12, 1)), str(train), name]
        command += ["--batch", "{batch}", "--replicas", "{replicas}"]
        command += ["--seconds", str(asked.step_seconds)]
        done = process.run(command, env, clock.left, "JAXCCOMP_GPU_RANKS")
        found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else None
    if found is not None:
        ranks.say(**told(name, table()[name].about, found))
    if done.wrong:
        ranks.say(wrong=name, reason=done.wrong)
    return int(bool(done.wrong))


def compare_algorithms(asked: argparse.Namespace, seconds: float) -> int:
    """Times allreduces of the largest number of processes; returns 1 after a failure."""
    clock, build = process.Clock(seconds), pathlib.Path(asked.build).resolve()
    count = max(map(int, asked.counts.split(",")))
    program = pathlib.Path(__file__).with_name("accdp_allreduce.py")
    limit = clock.left
    env = ranks.environment(build, asked.device)
    env.pop("XLA_PYTHON_CLIENT_MEM_FRACTION")  # `run` divides the memory
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "jaxccomp", "run", "-n", str(count)]
        command += ["--log-dir", folder, "--timeout", str(max(limit - 10, 1))]
        if asked.device != "cpu":
            command += ["--ranks-per-gpu", str(count)]
            command += [] if sources.module("launch.mps").why_not() else ["--mps"]
        command += [str(program), "--mib", asked.allreduce_mib, "--seconds", str(limit / 2)]
        done = process.run(command, env, limit, "JAXCCOMP_GPU_RANKS")
        log = pathlib.Path(folder, "rank-0.txt")
        for row in ranks.rows(log.read_text(encoding="utf-8") if log.exists() else ""):
            ranks.say(**row)
    if done.wrong:
        ranks.say(wrong="allreduce", reason=done.wrong)
    return int(bool(done.wrong))


def main() -> int:
    """Runs all cases that can run, and reports the others with the reason."""
    parser = ranks.parser(__doc__, 495.0)
    parser.add_argument(
        "--models", default="", help="rows of MODELS in models.py (default: all but tiny)"
    )
    parser.add_argument("--counts", default="1,2,4,8", help="processes (default: %(default)s)")
    parser.add_argument("--batch", type=int, help="of the device (default: the model's)")
    parser.add_argument("--rounds", type=int, default=3, help="at most (default: %(default)s)")
    parser.add_argument(
        "--allreduce-mib", default="4,64", help="timed alone; 0: none (default: %(default)s)"
    )
    parser.add_argument("--step-seconds", type=float, default=3.0, help="of training in a run")
    asked = parser.parse_args()
    clock = process.Clock(asked.seconds)
    if why := ranks.no_gpu(asked.device) if not asked.dry_run else "":
        print(f"accdp: {why}", file=sys.stderr)
        return ranks.NO_DEVICE
    env = ranks.environment(pathlib.Path(asked.build).resolve(), asked.device)
    missing = ranks.why_not("cpu" if asked.dry_run else asked.device, env)
    if not missing and not asked.dry_run and ranks.command(2, []) is None:
        missing = ranks.NO_MPIEXEC
    if missing:
        ranks.say(not_run="accdp", reason=missing)
        return 0
    chosen = (
        asked.models.split(",") if asked.models else [each for each in table() if each != "tiny"]
    )
    if unknown := sorted(set(chosen) - set(table())):
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(table())}")
    if asked.dry_run:
        for name in chosen:
            ranks.say(would_run=name, processes=asked.counts, rounds=asked.rounds)
        return 0
    worst = 0
    if asked.allreduce_mib != "0" and max(map(int, asked.counts.split(","))) > 1:
        worst |= compare_algorithms(asked, clock.left / 5)
    with tempfile.TemporaryDirectory(prefix="jaxccomp-compiled-") as cache:
        for number, name in enumerate(chosen):
            # Give a model at least a third of all time: few models, but well measured.
            wanted = max(clock.left / (len(chosen) - number), min(asked.seconds / 3, clock.left))
            if wanted < MIN_SECONDS:
                ranks.say(not_run=name, reason=f"{max(clock.left, 0):.0f} s were left")
                continue
            worst |= measure(name, asked, wanted, cache)
    return worst


if __name__ == "__main__":
    process.end_on_signals()
    sys.exit(main())

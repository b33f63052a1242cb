"""Compares ways to reduce gradients by the time of a training step on slow links.

    python -m testbed.training --json docs/results/training.jsonl --python torch=PATH
    python -m testbed.training --table docs/results/training.jsonl

Each round starts a new process per way. Losses come from separate launches without links, over
several seeds, with the same number of steps for all ways.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from jaxccomp._native import engine
from jaxccomp.bench import machine
from testbed import scenario, workers
from testbed.bed import Testbed
from testbed.training import data, report
from testbed.training.ways import WAYS, Way

_FOLDER = pathlib.Path(__file__).parent
# Compute on one thread per rank: all hosts share the machine's cores.
_ENVIRONMENT = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
}
if os.environ.get("JAXCCOMP_INSTRUCTION_SET") == "avx2":  # the same limit for XLA and PyTorch
    _ENVIRONMENT["XLA_FLAGS"] += " --xla_cpu_max_isa=AVX2"
    _ENVIRONMENT |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    _ENVIRONMENT |= {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}


# JAX reaches MPI through MPIwrapper (github.com/eschnett/MPIwrapper).
_WRAPPER = "TESTBED_MPIWRAPPER"


def _environment(way: Way) -> dict[str, str]:
    """The variables of a way's ranks."""
    if way.worker != "xla":
        return _ENVIRONMENT
    if way.codec == "gloo":
        return _ENVIRONMENT | {engine.XLA_IMPLEMENTATION: "gloo"}
    if way.codec == "mpi":
        library = {engine.XLA_MPI: os.environ[_WRAPPER]}
        return _ENVIRONMENT | {engine.XLA_IMPLEMENTATION: "mpi"} | library
    policy = {"raw": "", "lossless": "* lossless"}.get(
        way.codec, f"allreduce float32 >=64KiB {way.codec}"
    )
    return _ENVIRONMENT | engine.xla_variables() | {"JAXCCOMP_XLA_POLICY": policy}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.training", description=__doc__)
    add = parser.add_argument
    add("--task", choices=data.TASKS, default="mlp")
    add("--hosts", type=int, default=4)
    add("--link", default="1gbit")
    add("--rounds", type=int, default=3, help="0: only measure losses")
    add("--steps", type=int, default=20, help="timed steps in each round")
    add("--warmups", type=int, default=10)
    add("--seeds", type=int, default=3, help="number of runs to measure losses; 0: none")
    add("--loss-steps", type=int, default=300)
    add("--ways", action="append", help="only ways whose names contain this; may be repeated")
    add("--python", action="append", default=[], metavar="torch=PATH")
    return scenario.run(parser, _measure, table=report.table)


def _measure(given: argparse.Namespace) -> None:
    """Measures all ways and appends lines to the file."""
    pythons = dict(text.partition("=")[::2] for text in given.python)
    ways = [way for way in WAYS if any(part in way.name for part in given.ways or [""])]
    if "torch" not in pythons:
        ways = [way for way in ways if way.worker != "torch"]
        scenario.say("left out: torch; name its interpreter with --python torch=PATH")
    if not importlib.util.find_spec("libucx"):
        ways = [way for way in ways if way.transport != "ucx"]
        scenario.say("left out: UCX; pip install 'jaxccomp[ucx]'")
    if not os.environ.get(_WRAPPER):
        ways = [way for way in ways if (way.worker, way.codec) != ("xla", "mpi")]
        scenario.say(f"left out: JAX's MPI mode; name a library of MPIwrapper in {_WRAPPER}")
    rows = _time(given, ways, pythons)
    _losses(given, rows, pythons)
    lines = [_line(given, way, row) for way, row in rows.items()]
    for line in lines:
        print(json.dumps(line))
    if given.json:
        text = "".join(json.dumps(line) + "\n" for line in [{"facts": machine.facts()}, *lines])
        with open(given.json, "a", encoding="utf-8") as file:
            file.write(text)
    if failed := [way.name for way, row in rows.items() if "error" in row]:
        raise workers.FailedError(f"failed: {', '.join(failed)}")


def _time(
    given: argparse.Namespace, ways: Sequence[Way], pythons: dict[str, str]
) -> dict[Way, dict[str, Any]]:
    rows: dict[Way, dict[str, Any]] = {way: {"seconds": []} for way in ways}
    if not given.rounds:
        return rows
    with Testbed(given.hosts, given.link) as bed:
        for number in range(given.rounds):
            for way, row in rows.items():
                if "error" in row:
                    continue
                scenario.say(f"{given.task}, round {number + 1} of {given.rounds}: {way.name}")
                python = pythons.get(way.worker, sys.executable)
                program = _program(way, given, given.steps, given.warmups)
                try:
                    found = workers.run(
                        program,
                        bed,
                        python=python,
                        env=_environment(way) | {"MASTER_ADDR": bed.plan.hosts[0].address},
                        timeout_seconds=300,
                    )
                except workers.FailedError as error:
                    _fail(row, error)
                    continue
                said = found.said
                # The time of a step is the slowest rank's.
                each = [max(step) for step in zip(*(s["seconds"] for s in said), strict=True)]
                row["seconds"] += each
                checksums = {s["checksum"] for s in said if "checksum" in s}
                row["identical"] = len(checksums) < 2 and all(
                    s.get("identical", True) for s in said
                )
                row["checksums"] = row.get("checksums", set()) | checksums
                for name in ("processor", "coding", "outside"):
                    row.setdefault(name, []).append(max(s.get(name, 0) for s in said))
                ran = given.steps + given.warmups + said[0].get("traced", 0)
                row["received"] = found.received_bytes / given.hosts / ran
    return rows


def _losses(
    given: argparse.Namespace, rows: dict[Way, dict[str, Any]], pythons: dict[str, str]
) -> None:
    """Measures the loss of one way of each kind: all ways of a kind have the same loss.

    For example, bucket sizes do not change losses. Ways "per tensor" encode other sums; their
    losses are not measured.
    """
    found: dict[tuple[Any, ...], list[float]] = {}
    for way, row in rows.items():
        if way.worker in ("mpi", "alone") or way.per_tensor or "error" in row:
            continue
        recoded = way.algorithm if way.broadcasts else ""
        if way.transport == "ucx":
            continue
        kind = (way.worker, way.codec, way.large, way.feedback, way.broadcasts, recoded, way.warmup)
        if kind not in found:
            found[kind] = []
            for seed in range(given.seeds):
                scenario.say(f"{given.task}, loss {seed + 1} of {given.seeds}: {way.name}")
                try:
                    found[kind].append(_loss(given, way, seed, pythons))
                except workers.FailedError as error:
                    _fail(row, error)
                    break
        row["losses"] = found[kind]


def _fail(row: dict[str, Any], error: workers.FailedError) -> None:
    row["error"] = str(error)[-500:]
    scenario.say(row["error"])


def _loss(given: argparse.Namespace, way: Way, seed: int, pythons: dict[str, str]) -> float:
    python = pythons.get(way.worker, sys.executable)
    found = workers.run(
        _program(way, given, given.loss_steps, 0, seed, "--loss"),
        given.hosts,
        python=python,
        env=_environment(way) | {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"},
        timeout_seconds=900,
    )
    return found.said[0]["loss"]


def _program(
    way: Way,
    given: argparse.Namespace,
    steps: int,
    warmups: int,
    seed: int = 0,
    *more: str,
) -> list[str]:
    worker = _FOLDER / ("torch_worker.py" if way.worker == "torch" else "worker.py")
    described = json.dumps(dataclasses.asdict(way))
    numbers = {"steps": steps, "warmups": warmups, "seed": seed}
    options = [text for name, value in numbers.items() for text in (f"--{name}", str(value))]
    return [str(worker), described, "--task", given.task, *options, *more]


def _line(given: argparse.Namespace, way: Way, row: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {
        "task": given.task,
        "hosts": given.hosts,
        "link": given.link,
        "way": way.name,
        **dataclasses.asdict(way),
    }
    if "error" in row:
        return line | {"error": row["error"]}
    if row["seconds"]:
        line |= {
            "seconds": round(statistics.median(row["seconds"]), 4),
            "steps": len(row["seconds"]),
            "received_bytes_per_step": round(row["received"]),
            "identical": row["identical"],
            "processor_seconds": round(statistics.median(row["processor"]), 4),
            "coding_seconds": round(statistics.median(row["coding"]), 4),
        }
        if any(row["outside"]):
            line["outside_seconds"] = round(statistics.median(row["outside"]), 4)
    if row.get("checksums"):
        # Of the parameters after the last step; several if rounds differ.
        line["checksums"] = sorted(row["checksums"])
    if row.get("losses"):
        line["losses"] = [round(loss, 4) for loss in row["losses"]]
    return line


if __name__ == "__main__":
    sys.exit(main())

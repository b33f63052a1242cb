"""Launches the rows of a comparison, and chooses the rows of the next round."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence

from bench import contenders

from testbed import collectives, launchers, settings
from testbed.bed import Testbed
from testbed.cases import Case, Scenario
from testbed.inputs import Input
from testbed.results import Row

_WORKER = str(pathlib.Path(collectives.__file__))
# The next round drops a setting that takes longer than this times the fastest setting's time.
_MAX_SLOWDOWN = 1.1
_MPI4JAX_LACKS = ("reduce_scatter",)
# Transports other than MPI: the name to show, and variables of the ranks.
_CARRIERS = {"ucx": ("UCX", {"JAXCCOMP_TRANSPORT": "ucx"})}


@dataclasses.dataclass(frozen=True)
class Pythons:
    """The interpreters of a comparison.

    Attributes:
      mpis: interpreters by the MPI that their mpi4py loads; the first is this process's, which
        also runs jaxccomp.
      mpi4jax: the interpreter of an environment with mpi4jax; "" when there is none.
    """

    mpis: Mapping[str, str]
    mpi4jax: str = ""


def find_pythons(given: Sequence[str]) -> tuple[Pythons, str]:
    """Find the interpreters given as ``MPI=PATH`` or ``mpi4jax=PATH``, and this one.

    Returns:
      The interpreters, and the reason why there is no mpi4jax ("" if there is).

    Raises:
      InvalidArgumentError: when an interpreter loads another MPI than its name says.
      EngineUnavailableError: when an interpreter has no MPI.
    """
    paths = dict(text.partition("=")[::2] for text in given)
    mpi4jax = paths.pop("mpi4jax", sys.executable)
    missing = contenders.why_missing(contenders.find("mpi4jax"), mpi4jax)
    mpis = {launchers.find(None, sys.executable): sys.executable}
    mpis |= {launchers.find(mpi, path): path for mpi, path in paths.items()}
    return Pythons(mpis, "" if missing else mpi4jax), missing


def rows(cases: Sequence[Case], scenario: Scenario, pythons: Pythons) -> list[Row]:
    """Everything to measure, operation by operation."""
    table: list[Row] = []
    own = next(iter(pythons.mpis))
    for case in cases:
        if scenario.peers and case.op not in {row.case.op for row in table}:
            table += _peers(case, pythons)
        carrier, env = _CARRIERS.get(case.transport, (own, {}))
        name = f"jaxccomp {case.codec}, {carrier}"
        table.append(Row(case, name, case.algorithm, sys.executable, "jaxccomp", env))
    return table


def _peers(case: Case, pythons: Pythons) -> list[Row]:
    plain = dataclasses.replace(case, codec="raw", algorithm="auto")
    table = [
        Row(plain, mpi, name, python, "mpi", env)
        for mpi, python in pythons.mpis.items()
        for name, env in settings.CANDIDATES[mpi][case.op]
    ]
    if pythons.mpi4jax and case.op not in _MPI4JAX_LACKS:
        mpi = launchers.find(None, pythons.mpi4jax)
        table += [
            Row(plain, f"mpi4jax, {mpi}", name, pythons.mpi4jax, "mpi4jax", env)
            for name, env in settings.CANDIDATES[mpi][case.op]
        ]
    return table


def command(row: Row, given: argparse.Namespace, values: Input, out: str) -> list[str]:
    """The worker's command line for a row."""
    program = [row.python, "-P", _WORKER, row.worker, "--op", row.case.op, "--out", out]
    program += ["--bytes", str(given.size), "--input", values.file]
    program += ["--warmups", str(given.warmups), "--calls", str(given.calls)]
    if row.worker == "jaxccomp":
        program += ["--codec", row.case.codec, "--algorithm", row.case.algorithm]
        program += ["--ref", values.ref] if values.ref else []
    # Check only in the first round: checking takes longer than a call.
    return program if row.found else [*program, "--check", "--coding"]


def measure(bed: Testbed, row: Row, given: argparse.Namespace, values: Input) -> None:
    """Launches a row's worker once and adds its calls to the row."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out.jsonl")
        done = bed.run(
            command(row, given, values, str(out)),
            python=row.python,
            env=row.env,
            timeout_seconds=given.timeout,
            capture=True,
        )
        result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if done.returncode or "each_seconds" not in result:
        said = [line for line in done.stdout.splitlines() if "rror" in line]
        row.error = result.get("error") or f"exit status {done.returncode}: {(said or [''])[-1]}"
        return
    row.calls += result["each_seconds"]
    row.wire_bytes = result["wire_bytes"]
    kept = ("check", "bound", "peak_bytes", "bound_bytes", "coding_seconds")
    row.found |= {name: result[name] for name in kept if name in result}


def next_turn(table: Sequence[Row]) -> list[Row]:
    """The rows of the next round: without failed rows and slow settings (`_MAX_SLOWDOWN`)."""
    fastest: dict[tuple[Case, str], float] = {}
    good = [row for row in table if row.seconds and not row.error]
    for row in good:
        key = (row.case, row.contender)
        fastest[key] = min(row.seconds, fastest.get(key, row.seconds))
    return [
        row
        for row in good
        if row.setting == "default"
        or row.seconds <= _MAX_SLOWDOWN * fastest[row.case, row.contender]
    ]

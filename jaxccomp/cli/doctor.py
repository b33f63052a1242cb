"""Says what is found here and what is missing, with the reason and the remedy of each."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import shutil
from collections.abc import Iterator

import jax
import jaxlib

from jaxccomp import codecs
from jaxccomp._native import engine
from jaxccomp._native.version import __version__
from jaxccomp.cli import doctor_gpu, doctor_mpi
from jaxccomp.cli.finding import Finding

_REMEDY_OF_ENGINE = "pip install . in jaxccomp's folder; it takes a C++20 compiler"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; 0 whatever they are."""
    found = list(findings())
    if arguments.json:
        print(json.dumps({"findings": [dataclasses.asdict(each) for each in found]}, indent=1))
        return 0
    width = shutil.get_terminal_size((100, 24)).columns
    for each in found:
        for line in each.lines(width):
            print(line)
    return 0


def findings() -> Iterator[Finding]:
    """All findings, in the order of the page."""
    yield Finding("jaxccomp", "ok", f"{__version__}, Python {platform.python_version()}")
    yield _jax()
    yield _engine_finding()
    yield from doctor_mpi.findings()
    yield from _codecs()
    yield from doctor_gpu.findings()


def _jax() -> Finding:
    versions = f"jax {jax.__version__}, jaxlib {jaxlib.__version__}"
    numbers = tuple(int(each) for each in jax.__version__.split(".")[:2])
    if (0, 10) <= numbers < (0, 13):
        return Finding("JAX", "ok", versions)
    return Finding("JAX", "missing", f"{versions}: not tested", "pip install 'jax>=0.10.2,<0.13'")


def _engine_finding() -> Finding:
    if not engine.available():
        return Finding("engine", "missing", engine.why_missing(), _REMEDY_OF_ENGINE)
    described = engine.load().describe()
    detail = f"{described['instruction_set']}, XLA FFI {described['ffi_api']}"
    return Finding("engine", "ok", f"{detail}, {engine.load().__file__}")


def _codecs() -> Iterator[Finding]:
    table = codecs.table().values()
    yield Finding("codecs", "ok", " ".join(info.name for info in table if not info.missing))
    of_nvcomp = [info for info in table if info.name.startswith("nvcomp.")]
    for info in table:
        if info.missing and info not in of_nvcomp:
            remedy = f"install the system's lib{info.name}"
            if info.name == "zfp":
                remedy = "pip install 'jaxccomp[zfp]'"
            yield Finding(f"codec {info.name}", "missing", info.missing, remedy)
    # They come and go together, with what `doctor_gpu` finds, and say themselves what to do.
    for why in dict.fromkeys(info.missing for info in of_nvcomp if info.missing):
        names = " ".join(info.name for info in of_nvcomp if info.missing == why)
        yield Finding("codecs", "none", f"{names}: {why}")

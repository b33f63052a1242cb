"""Measures codecs beside memcpy and their peers: ratio, speed, error."""

from __future__ import annotations

import argparse
import importlib.util

from jaxccomp import codecs, errors
from jaxccomp.bench import codec_report, files
from jaxccomp.bench import codecs as bench
from jaxccomp.cli.terminal import parse_size, progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "--file",
        action="append",
        metavar="SOURCE",
        help="random, trained (a small transformer, about a minute), a .npy or .safetensors file, "
        "or a folder of .npy files; may be repeated (default: random)",
    )
    parser.add_argument(
        "--codecs",
        default=" ".join(bench.SPECS),
        help="specs, separated by spaces (default: all codecs)",
    )
    parser.add_argument("--chunk", default="1MiB", help="default: %(default)s")
    parser.add_argument(
        "--working-sets",
        default=",".join(bench.WORKING_SETS),
        help=f"of {', '.join(bench.WORKING_SETS)} (default: both)",
    )
    parser.add_argument(
        "--streaming", default="128MiB", help="size of that working set (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.25, help="for each measurement (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the measurements there")
    parser.add_argument(
        "--table", metavar="FILE", help="measure nothing; print such a file as Markdown tables"
    )
    parser.add_argument("--plot", metavar="FILE", help="also draw ratio against speed (.svg, .png)")


def run(arguments: argparse.Namespace) -> int:
    """Measures, and shows the tables."""
    if arguments.table:
        print(codec_report.markdown(codec_report.read(arguments.table)[1]), end="")
        return 0
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        raise errors.EngineUnavailableError(
            "bench codecs --plot needs matplotlib: `pip install 'jaxccomp[bench]'`."
        )
    working_sets = tuple(arguments.working_sets.split(","))
    for name in working_sets:
        if name not in bench.WORKING_SETS:
            raise errors.unknown("working set", name, bench.WORKING_SETS)
    if arguments.seconds <= 0:
        raise errors.InvalidArgumentError("--seconds must be positive.")
    plan = bench.Plan(
        specs=tuple(dict.fromkeys(_specs(arguments.codecs))),
        working_sets=working_sets,
        chunk_bytes=parse_size(arguments.chunk),
        streaming_bytes=parse_size(arguments.streaming),
        seconds=arguments.seconds,
    )
    tensors = [row for source in arguments.file or ["random"] for row in files.load(source)]
    with progress() as tell:
        rows = list(bench.run(plan, tensors, tell))
    codec_report.show(rows)
    for missing in _missing():
        print(missing)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            codec_report.write(rows, file)
    if arguments.plot:
        codec_report.plot(rows, arguments.plot)
    return 0


def _specs(text: str) -> list[str]:
    """Those that can be used here; all must exist."""
    found = []
    for spec in text.split():
        try:
            codecs.parse(spec)
        except errors.EngineUnavailableError:
            continue
        found.append(spec)
    return found


def _missing() -> list[str]:
    lines = [f"left out: {n}: {row.missing}" for n, row in codecs.table().items() if row.missing]
    if reason := bench.why_no_zipnn():
        lines.append(f"left out: {reason}")
    return lines

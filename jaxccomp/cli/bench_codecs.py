"""Measures codecs beside memcpy: ratio, speed, error."""

from __future__ import annotations

import argparse
import sys

from jaxccomp import codecs, errors
from jaxccomp.bench import codecs as bench
from jaxccomp.bench import files
from jaxccomp.cli.terminal import names, parse_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_plan(parser)
    parser.add_argument("--json", metavar="FILE", help="also write the measurements there")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that `plan_of` reads."""
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


def run(arguments: argparse.Namespace) -> int:
    """Measures, and shows the tables."""
    plan, tensors = plan_of(arguments)
    rows = list(bench.run(plan, tensors, say))
    print(bench.markdown(rows), end="")
    for name, info in codecs.table().items():
        if info.missing:
            say(f"left out: {name}: {info.missing}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            bench.write(rows, file)
    return 0


def plan_of(arguments: argparse.Namespace) -> tuple[bench.Plan, list[files.Tensor]]:
    """The parameters of the measurement, and its tensors."""
    if arguments.seconds <= 0:
        raise errors.InvalidArgumentError("--seconds must be positive.")
    plan = bench.Plan(
        specs=tuple(dict.fromkeys(_specs(arguments.codecs))),
        working_sets=names(arguments.working_sets, "working set", bench.WORKING_SETS),
        chunk_bytes=parse_size(arguments.chunk),
        streaming_bytes=parse_size(arguments.streaming),
        seconds=arguments.seconds,
    )
    return plan, [row for source in arguments.file or ["random"] for row in files.load(source)]


def say(line: str) -> None:
    """Prints a progress message."""
    print(line, file=sys.stderr, flush=True)


def _specs(text: str) -> list[str]:
    """The specs that can be used here; raises for an unknown one."""
    found = []
    for spec in text.split():
        try:
            codecs.parse(spec)
        except errors.EngineUnavailableError:
            continue
        found.append(spec)
    return found

"""Measures operations on ranks of this machine, or codecs (bench codecs)."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import sys
from typing import Any

from jaxccomp import codecs, errors
from jaxccomp._native import terminal
from jaxccomp._native.terminal import names, parse_size
from jaxccomp._runtime.environment import launcher
from jaxccomp.bench import calls, files, launch, machine
from jaxccomp.bench import codecs as bench
from jaxccomp.bench.team import Team

# --- Codecs and memcpy: ratio, speed, error -------------------------------------------------------


def _add_codec_arguments(parser: argparse.ArgumentParser) -> None:
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
        default=",".join(bench.SPECS),
        help="specs, separated by commas (default: all codecs)",
    )
    parser.add_argument("--chunk", default="1MiB", help="default: %(default)s")
    parser.add_argument(
        "--working-sets",
        default=",".join(bench.WORKING_SETS),
        help=f"among {', '.join(bench.WORKING_SETS)} (default: both)",
    )
    parser.add_argument(
        "--streaming", default="128MiB", help="size of the set streaming (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.25, help="time of a measurement (default: %(default)s)"
    )


def _run_codecs(arguments: argparse.Namespace) -> int:
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
    for spec in terminal.specs(text):
        try:
            codecs.parse(spec)
        except errors.EngineUnavailableError:
            continue
        found.append(spec)
    return found


# --- Operations -----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    others = parser.add_subparsers(dest="what", metavar="[codecs]")
    summary = "Measures ratio, speed and error of codecs, and memcpy in the same run."
    _add_codec_arguments(others.add_parser("codecs", help=summary, description=summary))
    add = parser.add_argument
    every = ",".join(calls.OPERATIONS)
    add("--ops", default=every, help="operations (default: %(default)s)")
    sizes = "1KiB,64KiB,1MiB,16MiB"
    larger = "bytes of the larger of a rank's operand and result, as in nccl-tests"
    add("--sizes", default=sizes, help=f"{larger} (default: %(default)s)")
    add("--codecs", default="raw", help="specs, separated by commas (default: %(default)s)")
    add("--dtypes", default="float32", help=f"among {', '.join(_DTYPES)} (default: %(default)s)")
    ranks = "ranks to start by MPI on this machine, unless this process is a rank (default: 2)"
    add("-n", "--ranks", type=int, default=2, help=ranks)
    add("--json", metavar="FILE", help="also write the measurements there")


def run(arguments: argparse.Namespace) -> int:
    """Measures on ranks and prints the table; starts the ranks unless this process is one."""
    if arguments.what == "codecs":
        return _run_codecs(arguments)
    chosen = names(arguments.ops, "operation", calls.OPERATIONS)
    dtypes = names(arguments.dtypes, "dtype", _DTYPES)
    sizes = [parse_size(text) for text in arguments.sizes.split(",")]
    specs = [codecs.canonical(spec) for spec in terminal.specs(arguments.codecs)]
    if arguments.ranks < 1:
        raise errors.InvalidArgumentError(f"--ranks must be at least 1, not {arguments.ranks}.")
    if launcher() is None and arguments.ranks > 1:
        return _start(arguments)
    team = Team()
    rows: list[dict[str, Any]] = []
    for name, dtype, spec in itertools.product(chosen, dtypes, specs):
        for each in calls.measure(team, name, spec, sizes, dtype):
            row = {"op": name, "dtype": dtype, "codec": spec, **dataclasses.asdict(each)}
            rows.append(row | {"algbw": each.algbw, "busbw": each.busbw})
    if team.rank:
        return 0
    print(f"{team.size} ranks; times of the slowest rank; bandwidths in GB/s (1e9 bytes)")
    print(*terminal.lines([_HEADS, *map(_cells, rows)], "<><<>>>>>>>"), sep="\n")
    if arguments.json:
        lines = [{"machine": machine.facts(), "ranks": team.size}, *rows]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        pathlib.Path(arguments.json).write_text(text, encoding="utf-8")
    return 0


_DTYPES = ("float32", "bfloat16", "float16")
_HEADS = (
    *("operation", "bytes", "dtype", "codec", "p50 us", "p99 us", "algbw", "busbw"),
    *("wire bytes", "ratio", "error"),
)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["op"],
        str(row["size_bytes"]),
        row["dtype"],
        row["codec"],
        f"{row['p50_us']:.1f}",
        f"{row['p99_us']:.1f}",
        f"{row['algbw']:.2f}",
        f"{row['busbw']:.2f}",
        str(row["wire_bytes"]),
        f"{row['ratio']:.2f}",
        f"{row['error']:.1e}" if row["error"] else "0",
    )


def _start(arguments: argparse.Namespace) -> int:
    """Runs the same command on ranks of this machine."""
    program = ["-P", "-m", "jaxccomp", "bench"]
    for name in ("ops", "sizes", "codecs", "dtypes", "json"):
        if given := getattr(arguments, name):
            program += [f"--{name}", given]
    bind = "core" if arguments.ranks <= (os.cpu_count() or 1) else "none"
    try:
        done = launch.run(arguments.ranks, program, bind=bind, timeout_seconds=3600)
    except RuntimeError as error:
        raise errors.EngineUnavailableError(str(error)) from None
    print(done.output, end="")
    if done.error:
        print(f"python -m jaxccomp bench: {done.error}", file=sys.stderr)
    return int(bool(done.error))

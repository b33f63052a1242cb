"""Measures the links, cores and codecs of the ranks that run it, and writes a profile."""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxccomp import codecs, config, errors, schedules
from jaxccomp._native import json_files, terminal
from jaxccomp.bench import files, profile, team
from jaxccomp.bench.team import Team


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write the profile there; until then FILE.unfinished has the measurements, and the "
        "same command continues them after an interruption",
    )
    parser.add_argument(
        "--within",
        type=float,
        default=120.0,
        metavar="S",
        help="measure no further codec after S seconds, and list the skipped ones (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--codecs",
        default=",".join(profile.SPECS),
        help="specs, separated by commas (default: %(default)s)",
    )
    parser.add_argument(
        "--tensors",
        action="append",
        metavar="SOURCE",
        help="tensors that codecs encode: random, trained (a small transformer, about a minute), "
        "a .npy or .safetensors file, or a folder of .npy files; may be repeated (default: random)",
    )
    parser.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="join by jax.distributed, with --processes and --process; otherwise by MPI, under an "
        "MPI launcher",
    )
    parser.add_argument("--processes", type=int, metavar="N", help="the number of processes")
    parser.add_argument("--process", type=int, metavar="I", help="this process's index, from 0")


def run(arguments: argparse.Namespace) -> int:
    """Measures on all ranks; rank 0 prints the table and writes the file."""
    plan = _plan(arguments)
    for option in ("profile", "plan"):
        config.set(option, "")  # an existing profile or plan must not affect the measurement
    _join(arguments)
    team = Team()
    first = team.rank == 0
    folder = os.path.dirname(os.path.abspath(arguments.output or "."))
    # Only rank 0 writes; if it cannot, all ranks end.
    if team.gather([first and not os.access(folder, os.W_OK)]).any():
        raise errors.InvalidArgumentError(
            f"--output: rank 0 cannot write into the folder {folder!r}; make it first."
        )
    unfinished = pathlib.Path(f"{arguments.output}.unfinished")
    kept, keep = b"", None
    if arguments.output and first:
        kept = _kept(unfinished)
        keep = functools.partial(json_files.write, unfinished)
    measured = profile.measure(team, plan, _say if first else lambda line: None, kept, keep)
    if not first:
        return 0
    print(table(measured.profile))
    if measured.left_out:
        print(f"no time for: {', '.join(measured.left_out)}; --within gives more")
    if arguments.output:
        schedules.write_profile(arguments.output, measured.profile)
        unfinished.unlink(missing_ok=True)
        print(f"written to {arguments.output}; the option profile (JAXCCOMP_PROFILE) names it")
    return 0


def _kept(unfinished: pathlib.Path) -> bytes:
    """The checkpoint of an unfinished measurement, at most one byte longer than is accepted."""
    try:
        with unfinished.open("rb") as file:
            return file.read(team.MAX_CHECKPOINT_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        _say(f"earlier measurements cannot be read, starting anew: {error}")
        return b""


def table(made: Mapping[str, Any]) -> str:
    """The measured profile, as lines of text."""
    lines = [f"values travel over {made['transport'].upper()}"] if made["transport"] else []
    for host in made["hosts"]:
        text = f"hosts: {host['count']}; ranks of each: {host['ranks']}, cores: {host['cores']}"
        if "up_bytes_per_second" in host:
            up, down = (host[f"{way}_bytes_per_second"] / 1e9 for way in ("up", "down"))
            text += f"; links: {up:.3f} GB/s up and {down:.3f} GB/s down"
        lines.append(text)
    if made.get("one_machine"):
        lines.append("all hosts share the cores of one machine")
    for kind, pair in made["pairs"].items():
        rate = pair.get("bytes_per_second")
        lines.append(
            f"{kind}: {pair['latency_seconds'] * 1e6:.1f} us"
            + (f", {rate / 1e9:.2f} GB/s" if rate else "")
        )
    memory = made["memory"]
    copy, merge = (memory[f"{what}_bytes_per_second"] / 1e9 for what in ("copy", "merge"))
    lines.append(
        f"memory: copies {copy:.2f} GB/s, sums {merge:.2f} GB/s; a call "
        f"{memory['call_seconds'] * 1e6:.0f} us"
    )
    if "step_seconds" in made:
        lines.append(f"a training step: {made['step_seconds'] * 1e3:.1f} ms")
    rates = ("encode", "decode", "merge")
    rows: list[tuple[str, ...]] = [("codec", "dtype", "ratio", *rates)]
    for spec, row in made["codecs"].items():
        for dtype, each in row["dtypes"].items():
            speeds = (f"{each[f'{what}_bytes_per_second'] / 1e9:.2f}" for what in rates)
            rows.append((spec, dtype, f"{each['ratio']:.2f}", *speeds))
    lines += terminal.lines(rows, "<<>>>>")
    return "\n".join(lines)


def _plan(arguments: argparse.Namespace) -> profile.Plan:
    if not arguments.within > 0:
        raise errors.InvalidArgumentError("--within must be positive.")
    specs = tuple(dict.fromkeys(map(codecs.canonical, terminal.specs(arguments.codecs))))
    sources = arguments.tensors or ["random"]
    tensors = [each for source in sources for each in files.load(source) if each.ref is None]
    return profile.Plan(tensors, specs, arguments.within)


def _join(arguments: argparse.Namespace) -> None:
    given = (arguments.coordinator, arguments.processes, arguments.process)
    if all(each is None for each in given):
        return
    if any(each is None for each in given):
        raise errors.InvalidArgumentError(
            "--coordinator, --processes and --process are given together, or none of them."
        )
    import jax

    jax.distributed.initialize(*given)


def _say(text: str) -> None:
    print(f"jaxccomp tune links: {text}", file=sys.stderr, flush=True)


# --- The faster of two profiles -------------------------------------------------------------------


def add_transport_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "profiles",
        nargs=2,
        metavar="FILE",
        help="files that `tune links` wrote with JAXCCOMP_TRANSPORT=mpi and ucx",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="write the faster profile there, for the option profile"
    )


def run_transport(arguments: argparse.Namespace) -> int:
    """Prints a training step's time over each transport, and writes the faster one's profile."""
    data = [schedules.read_profile(each) for each in arguments.profiles]
    clusters = [
        schedules.parse_profile(each, path)
        for each, path in zip(data, arguments.profiles, strict=True)
    ]
    _check(clusters, arguments.profiles)
    fast, slow = sorted(clusters, key=lambda each: each.step_seconds)
    print(
        f"{fast.transport}: {fast.step_seconds * 1e3:.3f} ms a step; {slow.transport}: "
        f"{slow.step_seconds * 1e3:.3f} ms, {slow.step_seconds / fast.step_seconds:.2f} times as "
        "long"
    )
    if arguments.output:
        json_files.write(pathlib.Path(arguments.output), data[clusters.index(fast)])
        print(f"written to {arguments.output}; the option profile (JAXCCOMP_PROFILE) names it")
    return 0


def _check(clusters: Sequence[schedules.Cluster], paths: Sequence[str]) -> None:
    names = [each.transport for each in clusters]
    if sorted(names) != ["mpi", "ucx"]:
        raise errors.InvalidArgumentError(
            f"one profile must be measured over mpi and one over ucx; these were over {names}. "
            "JAXCCOMP_TRANSPORT=ucx before `mpiexec ... tune links` measures over UCX."
        )
    for cluster, path in zip(clusters, paths, strict=True):
        if not cluster.step_seconds:
            raise errors.InvalidArgumentError(
                f"{path} has no time of a training step (step_seconds): measure it with "
                "`tune links`."
            )
    hosts = [
        [(each.ranks, each.cores) for each in cluster.hosts for _ in range(each.count)]
        for cluster in clusters
    ]
    if hosts[0] != hosts[1]:
        raise errors.InvalidArgumentError(
            "the profiles are of different hosts; (ranks, cores) of each host are "
            f"{hosts[0]} and {hosts[1]}. Measure both profiles on the same hosts."
        )

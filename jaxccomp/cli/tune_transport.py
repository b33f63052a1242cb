"""Takes the faster one of profiles that the same ranks have measured over MPI and over UCX."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

from jaxccomp import errors, schedules
from jaxccomp._native import json_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "profiles",
        nargs=2,
        metavar="FILE",
        help="as `tune links` writes them, with JAXCCOMP_TRANSPORT=mpi and ucx",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="write the faster one there, whose transport programs use"
    )


def run(arguments: argparse.Namespace) -> int:
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
            f"one profile is to be measured over mpi and one over ucx; these are of {names}. "
            "JAXCCOMP_TRANSPORT=ucx before `mpiexec ... tune links` measures over UCX."
        )
    for cluster, path in zip(clusters, paths, strict=True):
        if not cluster.step_seconds:
            raise errors.InvalidArgumentError(
                f"{path} does not say what a step takes: measure it with `tune links`."
            )
    hosts = [
        [(each.ranks, each.cores) for each in cluster.hosts for _ in range(each.count)]
        for cluster in clusters
    ]
    if hosts[0] != hosts[1]:
        raise errors.InvalidArgumentError(
            "the profiles are of different hosts; by host their ranks and cores are "
            f"{hosts[0]} and {hosts[1]}. Measure both on the same ones."
        )

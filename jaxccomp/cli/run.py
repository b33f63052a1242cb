"""Starts a script as ranks by MPI or ssh, binds them to cores and GPUs, and supervises them."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys

from jaxccomp import errors
from jaxccomp.launch import gpus, job, mpiexec, mps, placement, signals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("-n", "--ranks", type=int, required=True, help="number of processes")
    parser.add_argument(
        "--ranks-per-gpu",
        type=int,
        metavar="K",
        help="ranks that share a GPU (default: as few as possible)",
    )
    parser.add_argument(
        "--mps", action="store_true", help="run NVIDIA's Multi-Process Service for the job"
    )
    parser.add_argument(
        "--hosts",
        default="",
        metavar="A,B:4",
        help="hosts, optionally with a number of ranks each (default: this machine)",
    )
    parser.add_argument(
        "--transport",
        choices=("mpi", "ucx"),
        default="mpi",
        help="mpi: start ranks by mpiexec; ucx: without an MPI, by ssh on other hosts (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for all ranks, also on other hosts; without =VALUE, its value here",
    )
    parser.add_argument(
        "--bind-cores",
        choices=("auto", "none"),
        default="auto",
        help="give each rank cores of its own, near its GPU (default: %(default)s)",
    )
    parser.add_argument(
        "--memory-fraction",
        type=float,
        metavar="F",
        help="fraction of a GPU's memory for each rank, at most 0.9/K (default: 0.9/K; for K = 1 "
        "JAX's 0.75)",
    )
    parser.add_argument(
        "--thread-percentage",
        type=float,
        metavar="P",
        help="percentage of a GPU's threads that a rank may use, with --mps",
    )
    parser.add_argument("--log-dir", metavar="D", help="also write rank-N.txt there, one per rank")
    parser.add_argument("--timeout", type=float, metavar="S", help="end the job after S seconds")
    parser.add_argument("script", help="a Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")


def run(arguments: argparse.Namespace) -> int:
    """Runs the job; returns the exit status of the first rank that failed."""
    _check(arguments)
    hosts = mpiexec.slots(_names(arguments.hosts), arguments.ranks)
    found = gpus.Found((), "") if hosts else gpus.find()
    settings = placement.Settings(
        gpus=None if hosts else found.gpus,
        ranks_per_gpu=arguments.ranks_per_gpu,
        memory_fraction=_memory_fraction(arguments.memory_fraction),
        thread_percentage=arguments.thread_percentage,
        bind_cores=arguments.bind_cores == "auto",
    )
    if not hosts:
        _check_gpus(arguments, settings, found)
    with contextlib.ExitStack() as stack:
        stack.enter_context(signals.handled(signals.end))
        if arguments.mps:
            shared = placement.ranks_per_gpu(settings, len(found.gpus), arguments.ranks)
            used = found.gpus[: -(-arguments.ranks // shared)]
            service = stack.enter_context(mps.running(used))
            mps.tell(service, _say)
            settings = placement.with_service(settings, service.gpus, service.environment)
        outcome = job.run(
            job.Job(
                ranks=arguments.ranks,
                program=[arguments.script, *arguments.arguments],
                settings=settings,
                hosts=hosts,
                environment=_variables(arguments.env),
                timeout_seconds=arguments.timeout,
                transport=arguments.transport,
                log_dir=pathlib.Path(arguments.log_dir) if arguments.log_dir else None,
            )
        )
    if outcome.error:
        _say(outcome.error)
    return outcome.status


def _check(arguments: argparse.Namespace) -> None:
    if arguments.ranks < 1:
        raise errors.InvalidArgumentError(f"-n must be at least 1, not {arguments.ranks}.")
    if arguments.timeout is not None and arguments.timeout <= 0:
        raise errors.InvalidArgumentError("--timeout must be positive.")
    if arguments.thread_percentage is not None and not arguments.mps:
        raise errors.InvalidArgumentError(
            "--thread-percentage is a setting of MPS: give --mps as well."
        )
    if arguments.mps and arguments.hosts:
        raise errors.InvalidArgumentError(
            f"--mps starts the MPS of this machine only. With --hosts, start `{mps.CONTROL} -d` on "
            "each host and omit --mps: CUDA finds the daemon."
        )
    if not arguments.hosts and not os.path.isfile(arguments.script):
        raise errors.InvalidArgumentError(f"there is no file {arguments.script!r} to run.")


def _check_gpus(
    arguments: argparse.Namespace, settings: placement.Settings, found: gpus.Found
) -> None:
    for option, given in (
        ("--ranks-per-gpu", arguments.ranks_per_gpu is not None),
        ("--mps", arguments.mps),
        ("--memory-fraction", arguments.memory_fraction is not None),
    ):
        if given and not found.gpus:
            raise errors.InvalidArgumentError(
                f"{option} is for GPUs, and there is none: {found.how}. Omit {option} to run on "
                "the CPU."
            )
    placement.ranks_per_gpu(settings, len(found.gpus), arguments.ranks)


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _variables(given: list[str]) -> dict[str, str]:
    """The variables of ``--env``; a variable without a value gets this process's value."""
    found = {}
    for each in given:
        name, has_value, value = each.partition("=")
        if not name.isidentifier():
            raise errors.InvalidArgumentError(
                f"--env takes NAME=VALUE, or the NAME of a variable that is set here, not {each!r}."
            )
        if not has_value and name not in os.environ:
            raise errors.InvalidArgumentError(
                f"--env {name}: {name} is not set here. Set it, or give --env {name}=VALUE."
            )
        found[name] = value if has_value else os.environ[name]
    return found


def _memory_fraction(given: float | None) -> float | None:
    """The user's setting, from the command line or from one of JAX's own variables."""
    for name in placement.MEMORY_VARIABLES:
        if given is None and os.environ.get(name):
            try:
                return float(os.environ[name])
            except ValueError:
                raise errors.InvalidArgumentError(
                    f"{name} must be a number, not {os.environ[name]!r}."
                ) from None
    return given


def _say(text: str) -> None:
    print(f"jaxccomp run: {text}", file=sys.stderr, flush=True)

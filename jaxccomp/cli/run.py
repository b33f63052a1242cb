"""Starts a script as ranks by MPI or ssh, binds them to cores and GPUs, and supervises them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import NoReturn

from jaxccomp import errors
from jaxccomp._native import engine
from jaxccomp.cli import live
from jaxccomp.launch import gpus, job, lines, mpiexec, mps, placement, signals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "-n",
        "--ranks",
        type=int,
        help="number of processes; with --xla, it may be missing",
    )
    parser.add_argument(
        "--xla",
        action="store_true",
        help="run the collectives that XLA adds to programs of jit with shardings on the engine, "
        "on CPUs; without -n, in this process, which another launcher has started",
    )
    parser.add_argument(
        "--policy",
        metavar="RULES",
        help="with --xla: rules such as '* lossless', or a file with rules (docs/xla.md)",
    )
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
        help="hosts, optionally with a number of ranks each (default: the hosts of Slurm's "
        "allocation, otherwise this machine)",
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
    parser.add_argument(
        "--live",
        action="store_true",
        help="below the output, show the bytes that each rank sends and that codecs save, and how "
        "long it waits for others",
    )
    parser.add_argument("--log-dir", metavar="D", help="also write rank-N.txt there, one per rank")
    parser.add_argument("--timeout", type=float, metavar="S", help="end the job after S seconds")
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="when a rank fails, start all ranks again with the same arguments, at most N times "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="SCRIPT is a module's name, as in python -m"
    )
    parser.add_argument("script", help="a Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")


def run(arguments: argparse.Namespace) -> int:
    """Runs the job; returns the exit status of the first rank that failed."""
    _check(arguments)
    if arguments.ranks is None:
        _become_program(arguments)
    hosts = mpiexec.slots(_names(arguments.hosts) or _allocated_hosts(), arguments.ranks)
    if arguments.mps and hosts:
        raise errors.InvalidArgumentError(
            f"--mps starts the MPS of this machine only. With several hosts, start `{mps.CONTROL} "
            "-d` on each host and omit --mps: CUDA finds the daemon."
        )
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
        first = job.Job(
            ranks=arguments.ranks,
            program=[*["-m"][: arguments.module], arguments.script, *arguments.arguments],
            settings=settings,
            hosts=hosts,
            environment=_variables(arguments.env)
            | _xla_variables(arguments)
            | ({lines.LIVE: "1"} if arguments.live else {}),
            timeout_seconds=arguments.timeout,
            transport=arguments.transport,
            log_dir=pathlib.Path(arguments.log_dir) if arguments.log_dir else None,
        )
        return _run(first, arguments.max_restarts, arguments.live).status


def _run(first: job.Job, max_restarts: int, is_live: bool) -> job.Outcome:
    """Runs the job, again if a rank has failed; returns the last outcome."""
    restarts = 0
    while True:
        this = dataclasses.replace(first, restarts=restarts)
        if is_live:
            view = live.View(first.ranks, job.print_line)
            outcome = job.run(this, view.show, view.report)
            view.close()
        else:
            outcome = job.run(this)
        if outcome.error:
            _say(outcome.error)
        if not outcome.by_ranks or restarts == max_restarts:
            return outcome
        restarts += 1
        rank = "an unknown rank" if outcome.rank is None else f"rank {outcome.rank}"
        _say(
            f"{rank} {lines.described(outcome.status)} in attempt {restarts}: all {first.ranks} "
            f"ranks are started again, attempt {restarts + 1} of at most {max_restarts + 1}"
        )


def _allocated_hosts(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The hosts of Slurm's allocation; none outside an allocation, or if it is this host alone.

    Raises:
      InvalidArgumentError: if srun has started several processes of this command.
      LaunchError: if the hosts cannot be listed.
    """
    count = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if int(count) > 1:
        raise errors.InvalidArgumentError(
            f"srun has started {count} processes of this command, and each would start all ranks. "
            "Call `python -m jaxccomp run` once, in the batch script and without srun; or let srun "
            "start the ranks: `srun python PROGRAM`."
        )
    nodes = environ.get("SLURM_JOB_NODELIST", "")
    # SLURMD_NODENAME is set on nodes of the allocation, not on the login node of `salloc`.
    if not nodes or nodes == environ.get("SLURMD_NODENAME"):
        return []
    try:
        listed = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise errors.LaunchError(
            f"Slurm has allocated the hosts {nodes}, but scontrol does not list them ({error}). "
            "Give them with --hosts; --hosts localhost runs all ranks on this machine."
        ) from None
    hosts = listed.stdout.split()
    _say(f"ranks run on the hosts of Slurm's allocation: {', '.join(hosts)}")
    return hosts


def _check(arguments: argparse.Namespace) -> None:
    if arguments.policy is not None and not arguments.xla:
        raise errors.InvalidArgumentError("--policy is a setting of --xla: give --xla as well.")
    if arguments.ranks is None and not arguments.xla:
        raise errors.InvalidArgumentError(
            "-n N is missing: the number of ranks to start. Only --xla runs the program in this "
            "process, as a rank that another launcher has started."
        )
    if arguments.ranks is None and arguments.live:
        raise errors.InvalidArgumentError("--live shows the ranks that -n N starts: give -n.")
    if arguments.ranks is not None and arguments.ranks < 1:
        raise errors.InvalidArgumentError(f"-n must be at least 1, not {arguments.ranks}.")
    if arguments.timeout is not None and arguments.timeout <= 0:
        raise errors.InvalidArgumentError("--timeout must be positive.")
    if arguments.thread_percentage is not None and not arguments.mps:
        raise errors.InvalidArgumentError(
            "--thread-percentage is a setting of MPS: give --mps as well."
        )
    if arguments.max_restarts < 0:
        raise errors.InvalidArgumentError(
            f"--max-restarts must be at least 0, not {arguments.max_restarts}."
        )
    if not arguments.module and not arguments.hosts and not os.path.isfile(arguments.script):
        raise errors.InvalidArgumentError(
            f"there is no file {arguments.script!r} to run. For a module, give -m before its name."
        )


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


def _xla_variables(arguments: argparse.Namespace) -> dict[str, str]:
    if not arguments.xla:
        return {}
    policy = {} if arguments.policy is None else {"JAXCCOMP_XLA_POLICY": arguments.policy}
    return engine.xla_variables() | policy


def _become_program(arguments: argparse.Namespace) -> NoReturn:
    """Replace this process by the program, with the variables of --xla and --env."""
    os.environ.update(_variables(arguments.env) | _xla_variables(arguments))
    flags = ["-P"] if sys.flags.safe_path else []
    program = [*["-m"][: arguments.module], arguments.script, *arguments.arguments]
    os.execv(sys.executable, [sys.executable, *flags, job.PROGRAM, *program])


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

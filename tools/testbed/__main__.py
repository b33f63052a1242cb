"""Runs a command as MPI ranks on several emulated hosts with slow links, on this machine."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from jaxccomp import errors
from testbed import launchers, plan
from testbed.bed import Testbed

_PROGRAM = "python -m testbed"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.

    Returns:
      The command's exit status; 124 after a timeout, 2 for invalid arguments or a machine without
      a testbed, 130 when interrupted, 143 when terminated.
    """
    parsed = _parser().parse_args(arguments)
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    exit_on_signals()
    try:
        if not command and not parsed.goodput:
            raise errors.InvalidArgumentError("give a command after `--`, or --goodput.")
        if command:
            launchers.find(parsed.mpi, parsed.python)  # fail before creating the testbed
        with Testbed(parsed.hosts, parsed.link) as bed:
            if parsed.goodput:
                for (a, b), rate in bed.measure_goodput(all_pairs=parsed.all_pairs).items():
                    bits = plan.format_rate(round(rate * 8e-6) * 1_000_000)
                    print(f"host {a} to host {b}: {bits}/s of a TCP stream's data", flush=True)
            if not command:
                return 0
            done = bed.run(
                command,
                ranks_per_host=parsed.ranks_per_host,
                mpi=parsed.mpi,
                python=parsed.python,
                timeout_seconds=parsed.timeout,
            )
    except errors.JaxccompError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return done.returncode


def exit_on_signals() -> None:
    """Make SIGINT, SIGTERM and SIGHUP raise, so that testbeds are removed."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # A shell ignores SIGINT in processes that it starts in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__)
    parser.add_argument("--hosts", type=int, default=4, help="2 to 8 (default: %(default)s)")
    parser.add_argument(
        "--link",
        default="1gbit",
        help="rate of each host's link, each way, 100mbit to 5gbit (default: %(default)s)",
    )
    parser.add_argument("--ranks-per-host", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--mpi", metavar="|".join(launchers.TABLE), help="default: the one that mpi4py loads"
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter whose environment has the MPI (default: this one)",
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="limit of the command")
    parser.add_argument("--goodput", action="store_true", help="first measure a TCP stream's rate")
    parser.add_argument("--all-pairs", action="store_true", help="--goodput between any two hosts")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...")
    return parser


if __name__ == "__main__":
    sys.exit(main())

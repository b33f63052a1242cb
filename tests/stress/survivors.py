"""Jobs in which ranks live on when one has died: MPICH's mpiexec can be told to let them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from jaxccomp.bench import launch


def command(ranks: int, program: Sequence[str], *, shell: bool = True) -> list[str]:
    """The command line of such a job.

    Args:
      ranks: how many.
      program: arguments of the interpreter.
      shell: whether a shell stays between mpiexec and each rank. mpiexec cannot cope with a rank
        that a signal has ended; a shell makes that an exit status.
    """
    found = launch.command(ranks, program)
    found[1:1] = ["-disable-auto-cleanup"]
    # The others are sent SIGUSR1, which ends them, or their shells, unless it is ignored.
    at = found.index(sys.executable)
    start = '"$@"; exit $?' if shell else 'exec "$@"'
    found[at:at] = ["sh", "-c", f"trap '' USR1; {start}", "sh"]
    return found


def why_not() -> str:
    """Why this environment's MPI runs no such job; empty where it does."""
    mpich = launch.vendor()[0].startswith("MPICH")
    return "" if mpich else "Open MPI ends all ranks when one has died"


def run(
    ranks: int,
    program: Sequence[str],
    settings: Mapping[str, str],
    *,
    timeout_seconds: float,
    shell: bool = False,
) -> str:
    """Runs such a job, as `command` has it, and returns its output."""
    done = subprocess.run(
        command(ranks, program, shell=shell),
        env=launch.environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_seconds,
    )
    return done.stdout

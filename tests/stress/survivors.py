"""Jobs whose ranks survive the death of another rank. MPICH's mpiexec has an option for this."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from jaxccomp.bench import launch


def command(ranks: int, program: Sequence[str], *, shell: bool = True) -> list[str]:
    """Returns the command line of such a job.

    Args:
      ranks: their number.
      program: arguments of the interpreter.
      shell: whether a shell runs between mpiexec and each rank. mpiexec fails if a signal kills a
        rank; a shell turns that into an exit status.
    """
    found = launch.command(ranks, program)
    found[1:1] = ["-disable-auto-cleanup"]
    # MPICH sends the others SIGUSR1, which would kill them or their shells: ignore it.
    at = found.index(sys.executable)
    start = '"$@"; exit $?' if shell else 'exec "$@"'
    found[at:at] = ["sh", "-c", f"trap '' USR1; {start}", "sh"]
    return found


def why_not() -> str:
    """Returns why this environment's MPI cannot run such a job, or ""."""
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
    """Runs such a job (see `command`), and returns its output."""
    done = subprocess.run(
        command(ranks, program, shell=shell),
        env=launch.environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_seconds,
    )
    return done.stdout

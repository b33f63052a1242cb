"""Jobs in which ranks live on when one has died: MPICH's mpiexec can be told to let them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

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

"""Jobs with an injected fault: how they are started, and their time limit."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
from collections.abc import Callable

from jaxccomp.bench import launch
from stress import survivors
from stress.faults import record
from stress.faults.table import PROCESSES, Fault

HERE = pathlib.Path(__file__).parent
RUNS_A_JOB = 25
VICTIMS_A_JOB = 8
# Time limit of a job: for its start, and for each run.
START_SECONDS = 90.0
RUN_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    hung: bool
    text: str


class Job:
    """A running job.

    Attributes:
      ranks: the number of ranks in each run.
      ends_job: whether jaxccomp's launcher ends all ranks after a death, and then removes MPI's
        files from shared memory. mpiexec does not.
    """

    def __init__(
        self, command: list[str], env: dict[str, str], ranks: int, seconds: float, *, ends_job: bool
    ):
        self.ranks, self.ends_job, self._seconds = ranks, ends_job, seconds
        self._process = subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait(self, look: Callable[[], None]) -> Outcome:
        """Waits for the end or the time limit; calls ``look`` regularly meanwhile."""
        left = self._seconds
        while left > 0:
            try:
                output, _ = self._process.communicate(timeout=0.5)
                return Outcome(False, output[-600:])
            except subprocess.TimeoutExpired:
                look()
                left -= 0.5
        self._process.kill()
        output, _ = self._process.communicate()
        return Outcome(True, f"not done after {self._seconds:g} s: {output[-600:]}")


def start(fault: Fault, place: str, first: int, runs: int, seed: int, folder: pathlib.Path) -> Job:
    """Starts a job for the next runs. It may do fewer."""
    env = launch.environment(
        {record.FOLDER: str(folder), "JAXCCOMP_INIT_TIMEOUT_SECONDS": "30"} | dict(fault.options)
    )
    ends_job = fault.ends_process and (fault.ends_job or place != "mpich")
    if fault.ends_process:
        runs = min(runs, 1 if ends_job else VICTIMS_A_JOB)
    runs = min(runs, RUNS_A_JOB)
    seconds = START_SECONDS + runs * RUN_SECONDS
    script = str(HERE / ("death.py" if fault.ends_process else "rank.py"))
    if place not in PROCESSES:
        command = [sys.executable, "-P", str(HERE / "devices.py")]
        env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    elif ends_job:
        command = [sys.executable, "-P", "-m", "jaxccomp", "run", "-n", "3", script]
    elif fault.ends_process:
        command = survivors.command(2 + runs, [script])
    else:
        command = launch.command(3, [script])
    command += [fault.name, str(first), str(runs), str(seed)]
    return Job(command, env, 3 if place in PROCESSES else 8, seconds, ends_job=ends_job)

"""Measures how many processes per device are fastest for a program, and alternatives.

After "AccDP" (Alnaasan et al., HiPC 2022): small networks leave a GPU partly idle, and several
data-parallel processes that share it under MPS may use it fully. All cases with several processes
or replicas have the same batch per device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from jaxccomp import errors
from jaxccomp.launch import job, lines, mps
from jaxccomp.launch.gpus import Gpu
from jaxccomp.launch.placement import Settings, with_service

BATCH, REPLICAS = "JAXCCOMP_TUNE_BATCH", "JAXCCOMP_TUNE_REPLICAS"


@dataclasses.dataclass(frozen=True)
class Case:
    """One configuration of a device; a row of the table.

    Attributes:
      name: its name in the table.
      processes: the number of processes on each device.
      batch: samples of each replica in a step.
      replicas: the number of replicas in each process (``vmap``).
      mps: whether it runs under MPS; None if MPS does not matter.
      why_not: why it cannot be measured; "" if it can.
    """

    name: str
    processes: int
    batch: int
    replicas: int = 1
    mps: bool | None = None
    why_not: str = ""

    @property
    def device_batch(self) -> int:
        """The samples of a device in a step."""
        return self.processes * self.replicas * self.batch


@dataclasses.dataclass
class Result:
    """The measurements of a case.

    Attributes:
      case: the case.
      rounds: samples per second in each round.
      error: the error, or why the case was skipped.
      left_out: the number of rounds that were skipped for lack of time.
      seconds: duration of the longest run.
    """

    case: Case
    rounds: list[float] = dataclasses.field(default_factory=list)
    error: str = ""
    left_out: int = 0
    seconds: float = 0.0

    @property
    def median(self) -> float | None:
        """The median over the rounds; None without any."""
        return statistics.median(self.rounds) if self.rounds and not self.error else None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The measurements to make.

    Attributes:
      program: the script and its arguments, with ``{batch}`` and ``{replicas}``.
      counts: numbers of processes per device.
      batch: samples of a device in a step, divided evenly among its processes.
      gpus: the GPUs to use; empty: the machine's CPU is the only device.
      vmap: whether the program supports replicas.
      no_mps: why MPS cannot be used; "" when it can.
      rounds: the number of runs of each case.
      timeout_seconds: the time limit of each run.
      within_seconds: the time limit of all runs together; None: no limit.
      bind_cores: whether ranks are bound to cores.
    """

    program: Sequence[str]
    counts: Sequence[int]
    batch: int
    gpus: tuple[Gpu, ...] = ()
    vmap: bool = False
    no_mps: str = ""
    rounds: int = 3
    timeout_seconds: float = 600.0
    within_seconds: float | None = None
    bind_cores: bool = True

    def cases(self) -> list[Case]:
        """Return the cases; the first, one process, is the baseline."""
        several = [count for count in self.counts if count > 1]
        found = [Case("1 process", 1, self.batch)]
        for count in several:
            name = f"{count} processes"
            if self.gpus:
                found.append(self._share(f"{name}, MPS", count, mps=True))
                found.append(self._share(f"{name}, no MPS", count, mps=False))
            else:
                found.append(self._share(name, count))
        if several and not self.gpus:
            reason = "MPS shares GPUs; this runs on the CPU"
            row = self._share(f"{max(several)} processes, MPS", max(several))
            found.append(dataclasses.replace(row, mps=True, why_not=reason))
        found += [self._replicas(count) for count in several]
        if several:
            maximum = max(several)
            found.append(Case(f"1 process, {maximum} times the batch", 1, maximum * self.batch))
        return found

    def _share(self, name: str, count: int, mps: bool | None = None) -> Case:
        batch, rest = divmod(self.batch, count)
        reason = f"a batch of {self.batch} is not {count} equal ones" if rest else ""
        if mps and not reason:
            reason = self.no_mps
        return Case(name, count, batch, mps=mps, why_not=reason)

    def _replicas(self, count: int) -> Case:
        case = self._share(f"1 process, vmap of {count}", count)
        reason = case.why_not
        if not self.vmap:
            reason = (
                "the program does not say that it can: no {replicas} in its arguments, no --vmap"
            )
        return dataclasses.replace(case, processes=1, replicas=count, why_not=reason)


def measure(
    plan: Plan,
    tell: Callable[[str], None] = lambda line: None,
    run: Callable[[Plan, Case], float] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> list[Result]:
    """Run all cases once per round, so that a slow period of the machine affects all cases.

    With ``within_seconds`` a run starts only if the remaining time exceeds the case's longest run,
    or the longest run of all cases if this case has not run yet. Cases without MPS then come last
    in each round.

    Args:
      plan: the measurements to make.
      tell: called with a line about each run.
      run: measures one case once, by default `run_once`; raises LaunchError if that fails.
      now: the clock, in seconds.

    Returns:
      One result per case. A case that fails once is not tried again.
    """
    results, begin = [Result(case, error=case.why_not) for case in plan.cases()], now()
    turns = results
    if plan.within_seconds is not None and not plan.no_mps:
        turns = sorted(results, key=lambda each: each.case.mps is False)
    for number in range(plan.rounds):
        for result in turns:
            if result.error:
                continue
            start = now()
            limit, reason = _time_for(result, results, plan, start - begin)
            if reason:
                _leave_out(result, reason)
                continue
            tell(f"round {number + 1} of {plan.rounds}: {result.case.name}")
            limited = dataclasses.replace(plan, timeout_seconds=limit)
            try:
                result.rounds.append((run or run_once)(limited, result.case))
            except errors.LaunchError as error:
                if limit < plan.timeout_seconds and now() - start >= limit:
                    _leave_out(result, f"not done in the {limit:.0f} s that were left")
                else:
                    result.error = str(error)
            result.seconds = max(result.seconds, now() - start)
    return results


def _time_for(
    result: Result, results: Sequence[Result], plan: Plan, used: float
) -> tuple[float, str]:
    """Return the seconds that the next run may take, or the reason why it may not run."""
    if plan.within_seconds is None:
        return plan.timeout_seconds, ""
    left = plan.within_seconds - used
    needed = result.seconds or max(each.seconds for each in results)
    if left <= needed:
        return 0.0, f"{max(left, 0):.0f} s were left, and runs take up to {needed:.0f} s"
    return min(plan.timeout_seconds, left), ""


def _leave_out(result: Result, reason: str) -> None:
    result.left_out += 1
    if not result.rounds:
        result.error = f"left out: {reason}"


def run_once(plan: Plan, case: Case) -> float:
    """Run a case once; return the samples per second of all ranks together.

    Raises:
      LaunchError: if the program fails, or a rank reports no throughput.
    """
    ranks = case.processes * max(len(plan.gpus), 1)
    rates: dict[int, float] = {}

    def listen(rank: int | None, line: str, is_error: bool) -> None:
        rate = lines.parse_throughput(line)
        if rank is not None and rate is not None and not is_error:
            rates[rank] = rate

    settings = Settings(
        gpus=plan.gpus,
        ranks_per_gpu=case.processes if plan.gpus else None,
        bind_cores=plan.bind_cores,
    )
    with contextlib.ExitStack() as stack:
        if case.mps:
            service = stack.enter_context(mps.running(plan.gpus))
            settings = with_service(settings, service.gpus, service.environment)
        elif plan.gpus:
            # An empty pipe folder, so that these ranks do not use a running daemon.
            nowhere = stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxccomp-no-mps-"))
            settings = with_service(settings, plan.gpus, {mps.PIPES: nowhere})
        outcome = job.run(
            job.Job(
                ranks=ranks,
                program=[filled(each, case) for each in plan.program],
                settings=settings,
                environment=environment(plan, case),
                timeout_seconds=plan.timeout_seconds,
            ),
            show=listen,
        )
    if outcome.interrupted:
        raise SystemExit(outcome.status)
    if outcome.error:
        raise errors.LaunchError(outcome.error)
    if silent := [str(rank) for rank in range(ranks) if rank not in rates]:
        raise errors.LaunchError(
            f"rank(s) {', '.join(silent)} reported no throughput: every rank calls "
            "jaxccomp.launch.report_throughput(samples_per_second)"
        )
    return sum(rates.values())


def filled(argument: str, case: Case) -> str:
    """Replace ``{batch}`` and ``{replicas}`` in an argument of the program."""
    text = argument.replace("{batch}", str(case.batch))
    return text.replace("{replicas}", str(case.replicas))


def environment(plan: Plan, case: Case) -> Mapping[str, str]:
    """Return the environment variables for the program of a case."""
    found = {BATCH: str(case.batch), REPLICAS: str(case.replicas)}
    return found if plan.gpus else found | {"JAX_PLATFORMS": "cpu"}


def device_name(plan: Plan) -> str:
    """Return a readable name of the device that the cases share."""
    if plan.gpus:
        return f"{len(plan.gpus)} GPU(s)"
    return f"the CPU ({len(os.sched_getaffinity(0))} cores)"

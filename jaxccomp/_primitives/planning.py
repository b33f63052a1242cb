"""What "auto" becomes: by a pinned plan, or by a profile and its prices (docs/planner.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxccomp import codecs, comm, errors, schedules
from jaxccomp._call import Call
from jaxccomp.schedules._plans import Plan, PlannedCall, Plans


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A call, as it has become part of a program.

    Attributes:
      where: the source line.
      call: with the algorithm and the codec that run.
      mover: "native", "mpi", "xla", or a backend that is registered.
      sizes: bytes that a rank passes in, by dtype; None where they are not known.
      choice: a `jaxccomp.schedules.Choice`, where prices are known.
      site: the arguments of its `jaxccomp.plan.PlannedCall`; None where plans have none.
      groups: the processes of its ranks, by group.
      operands: shapes and dtypes.
    """

    where: str
    call: Call
    mover: str
    sizes: tuple[tuple[str, int], ...] | None
    choice: Any | None
    site: Mapping[str, Any] | None
    groups: tuple[tuple[int, ...], ...]
    operands: str

    @property
    def is_on_cpus(self) -> bool:
        """Whether it runs there, and nowhere else."""
        return self.site is not None and self.site["platform"] == "cpu"


# One way to run, and each rank passes in what it likes; or what the program does not leave open.
_UNPLANNED = ("send", "recv", "sendrecv", "barrier")

_recorder = threading.local()


@contextlib.contextmanager
def recorded() -> Iterator[list[Lowered]]:
    """Collects all calls that this thread lowers within a ``with`` block."""
    calls: list[Lowered] = []
    outer = getattr(_recorder, "lists", ())
    _recorder.lists = (*outer, calls)
    try:
        yield calls
    finally:
        _recorder.lists = outer


def lower_anew(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Lowers a function, which may be jitted, for its arguments, and runs nothing."""

    # A function of its own, of which JAX has kept nothing.
    def program(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    jax.jit(program).lower(*args, **kwargs)


def record(
    where: str,
    call: Call,
    mover: str,
    avals: Sequence[Any],
    choice: Any = None,
    *,
    operands: str,
    site: Mapping[str, Any] | None = None,
    groups: Sequence[Sequence[Any]] | None = None,
) -> None:
    """Notes a call, where somebody asks for it."""
    if _is_recording():
        sizes, processes = _sizes(avals), _processes(call, groups)
        lowered = Lowered(where, call, mover, sizes, choice, site, processes, operands)
        for calls in _recorder.lists:
            calls.append(lowered)


def no_plans() -> Plans:
    """Plans of this world, to which `add_plans` adds calls."""
    return Plans(tuple(Counter(comm.hosts()).values()))


def add_plans(plans: Plans, calls: Iterable[Lowered]) -> None:
    """Adds how calls run.

    Raises:
      InvalidArgumentError: where one call was planned in two ways.
    """
    for each in calls:
        if each.site is not None:
            plans.add(PlannedCall.of(each.site), _plan(each), each.where)


def _plan(lowered: Lowered) -> Plan:
    call, backend = lowered.call, lowered.mover
    algorithm = call.algorithm
    if backend == "native":
        if algorithm == "auto" and lowered.choice is not None:
            algorithm = lowered.choice.chosen.runs
        elif algorithm == "auto" and lowered.is_on_cpus and lowered.sizes is not None:
            algorithm = _static_rule(call, lowered.sizes, lowered.groups)
        algorithm = schedules.with_chunk(algorithm)
    return Plan(backend, algorithm, call.codec)


def _static_rule(
    call: Call, sizes: Sequence[tuple[str, int]], groups: Sequence[Sequence[int]]
) -> str:
    world = comm.hosts()
    hosts = [[world[process] for process in group] for group in groups]
    return schedules.static_rule(call.collective, hosts, sizes, call.codec)


def algorithm_that_runs(
    call: Call, avals: Sequence[Any], groups: Sequence[Sequence[Any]] | None
) -> str:
    """The algorithm of a call that the engine runs; "auto" where that is not known.

    Args:
      call: with the algorithm that was chosen, or "auto" for the static rule's.
      avals: shapes and dtypes of the operands that are sent.
      groups: of devices, by rank, for a call along axes.
    """
    if call.algorithm.partition(":")[0] != "auto":
        return call.algorithm
    sizes = _sizes(avals)
    return "auto" if sizes is None else _static_rule(call, sizes, _processes(call, groups))


def _is_recording() -> bool:
    return bool(getattr(_recorder, "lists", ()))


def site_of(
    call: Call,
    operands: str,
    groups: Sequence[Sequence[Any]] | None,
    platforms: Sequence[str],
) -> dict[str, Any] | None:
    """What a call is, alike on all its ranks; None where nobody asks, or plans have no such call.

    Args:
      call: as the program has it.
      operands: shapes and dtypes.
      groups: of devices, by rank, for a call along axes.
      platforms: that it is lowered for.
    """
    if call.collective in _UNPLANNED or call.backend == "xla":
        return None
    # Whoever has not joined knows of no plan, be it here or on other ranks.
    if not _is_recording() and not (comm.is_initialized() and comm.plans() is not None):
        return None
    details = ("reverse", "referenced", "feedback", "carries")
    return {
        "collective": call.collective,
        "reduce_op": call.reduce_op,
        "root": call.root,
        "ranks": call.size,
        "members": _members(call, groups),
        "operands": operands,
        "details": " ".join(name for name in details if getattr(call, name)),
        "platform": " ".join(platforms),
        "backend": call.backend,
        "algorithm": call.algorithm,
        "codec": call.codec,
    }


def _members(call: Call, groups: Sequence[Sequence[Any]] | None) -> str:
    processes = _processes(call, groups)
    if call.comm is None:
        # All ranks see all groups, which share links, or do not.
        return "processes " + " | ".join(map(_runs, processes)) if processes else "ranks on axes"
    # Members of other communicators may make the same call, by the same plan.
    hosts = comm.hosts()
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts[p] for p in processes[0]))}
    return "hosts " + _runs([numbers[hosts[process]] for process in processes[0]])


def _runs(numbers: Sequence[int]) -> str:
    found = [(number, len(list(run))) for number, run in itertools.groupby(numbers)]
    return " ".join(f"{number}*{count}" if count > 1 else str(number) for number, count in found)


def pinned(site: Mapping[str, Any] | None, call: Call, where: str) -> Call | None:
    """The call as the pinned plan has it; None where none is pinned.

    Args:
      site: as `site_of` has it.
      call: as the program has it.
      where: the source line.

    Raises:
      InvalidArgumentError: where the plan lacks the call, or has a codec that the program does not
        allow.
    """
    plans = comm.plans() if site is not None and comm.is_initialized() else None
    if site is None or plans is None:
        return None
    plan = plans.find(site, where)
    if plan is None:
        return None
    if plan.backend == "xla" and call.comm is not None and call.size > 1:
        raise errors.InvalidArgumentError(
            f"{call.collective} at {where}: the pinned plan (option plan) has backend 'xla', which "
            "has no communicators: it needs axis_name=. Record the plan anew."
        )
    allowed = codecs.choices(call.codec)
    codec = codecs.canonical(plan.codec)
    if codec not in map(codecs.canonical, allowed):
        raise errors.InvalidArgumentError(
            f"{call.collective} at {where}: the pinned plan (option plan) has codec {codec!r}, but "
            f"the program allows {errors.listed(allowed)}. Record the plan anew, or change the "
            "program's codec=."
        )
    return call.replace(codec=codec, algorithm=plan.algorithm, backend=plan.backend)


def settled(call: Call) -> Call:
    """The call as it is without a profile."""
    return call.replace(codec=codecs.canonical(call.codec))


def choice_of(
    call: Call, avals: Sequence[Any], groups: Sequence[Sequence[Any]] | None
) -> Any | None:
    """What the profile of the ranks chooses for a call that the engine runs on the host.

    Args:
      call: with "auto" where something is to be chosen.
      avals: shapes and dtypes of the operands that are sent.
      groups: of devices, by rank, for a call along axes.

    Returns:
      A `jaxccomp.schedules.Choice`; None where there is none, or none is asked for.
    """
    planner, sizes = comm.planner(), _sizes(avals)
    specs = codecs.choices(call.codec)
    is_open = call.algorithm == "auto" or len(specs) > 1
    if planner is None or sizes is None or not (is_open or _is_recording()):
        return None
    # Residuals and references cost what prices do not know.
    if call.feedback or call.carries or call.referenced or call.reverse:
        return None
    return planner.choose(
        call.collective,
        algorithm=call.algorithm,
        codecs=specs,
        sizes=sizes,
        groups=_processes(call, groups),
        root=max(call.root, 0),
        every_option=_is_recording(),  # to be shown
    )


def _sizes(avals: Sequence[Any]) -> tuple[tuple[str, int], ...] | None:
    sizes: Counter[str] = Counter()
    for aval in avals:
        if not hasattr(aval, "dtype") or not all(isinstance(n, int) for n in aval.shape):
            return None  # as in exported programs of any shape
        sizes[aval.dtype.name] += math.prod(aval.shape) * aval.dtype.itemsize
    return tuple(sorted(sizes.items()))


def _processes(call: Call, groups: Sequence[Sequence[Any]] | None) -> tuple[tuple[int, ...], ...]:
    if call.comm is not None:
        return (call.comm.processes,)
    numbers = comm.process_numbers()
    return tuple(tuple(numbers[device.process_index] for device in group) for group in groups or ())

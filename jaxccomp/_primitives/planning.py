"""Resolves "auto" by a pinned plan, or by a profile's predictions (docs/planner.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxccomp import codecs, comm, errors, schedules
from jaxccomp._call import Call
from jaxccomp._native import engine
from jaxccomp.schedules._plans import Plan, PlannedCall, Plans

_LOGGER = logging.getLogger("jaxccomp")  # by the option log


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A lowered call.

    Attributes:
      where: the source line.
      call: with the resolved algorithm and codec.
      backend: "native", "mpi", "xla", or a registered backend.
      sizes: bytes of a rank's operands, by dtype; None for symbolic shapes.
      choice: a `jaxccomp.schedules.Choice`, if there are predictions.
      site: the arguments of its `jaxccomp.plan.PlannedCall`; None if plans do not have such calls.
      groups: the processes of each group, by rank.
      operands: shapes and dtypes.
    """

    where: str
    call: Call
    backend: str
    sizes: tuple[tuple[str, int], ...] | None
    choice: Any | None
    site: Mapping[str, Any] | None
    groups: tuple[tuple[int, ...], ...]
    operands: str

    @property
    def is_on_cpus(self) -> bool:
        """Whether the call runs on CPUs only."""
        return self.site is not None and self.site["platform"] == "cpu"


# Never planned: messages, whose sizes differ by rank, and barrier: only one implementation exists.
_UNPLANNED = ("send", "recv", "sendrecv", "barrier")

_recorder = threading.local()


@contextlib.contextmanager
def recorded() -> Iterator[list[Lowered]]:
    """Collect all calls that this thread lowers within a ``with`` block."""
    calls: list[Lowered] = []
    outer = getattr(_recorder, "lists", ())
    _recorder.lists = (*outer, calls)
    try:
        yield calls
    finally:
        _recorder.lists = outer


def lower_anew(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Lower a function, which may be jitted, for its arguments, without running it."""

    # A new function, for which JAX has no cached lowering.
    def program(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    jax.jit(program).lower(*args, **kwargs)


def record(
    where: str,
    call: Call,
    backend: str,
    avals: Sequence[Any],
    choice: Any = None,
    *,
    operands: str,
    site: Mapping[str, Any] | None = None,
    groups: Sequence[Sequence[Any]] | None = None,
) -> None:
    """Record a call in all enclosing `recorded` blocks, and log it."""
    is_logged = _LOGGER.isEnabledFor(logging.DEBUG)
    if not _is_recording() and not is_logged:
        return
    sizes, processes = _sizes(avals), _processes(call, groups)
    lowered = Lowered(where, call, backend, sizes, choice, site, processes, operands)
    if _is_recording():
        for calls in _recorder.lists:
            calls.append(lowered)
    if is_logged:
        plan = _plan(lowered)
        how = (plan.backend, plan.algorithm, plan.codec)
        text = "%s at %s (%s): backend %s, algorithm %s, codec %s"
        _LOGGER.debug(text, call.collective, where, operands, *how)


def no_plans() -> Plans:
    """Return empty plans of this world, for `add_plans`."""
    return Plans(tuple(Counter(comm.hosts()).values()))


def add_plans(plans: Plans, calls: Iterable[Lowered]) -> None:
    """Add the plans of lowered calls.

    Raises:
      InvalidArgumentError: when one call has two different plans.
    """
    for each in calls:
        if each.site is not None:
            plans.add(PlannedCall.of(each.site), _plan(each), each.where)


def _plan(lowered: Lowered) -> Plan:
    call, backend = lowered.call, lowered.backend
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
    """Return the algorithm of a call that the engine runs; "auto" if it is not known.

    Args:
      call: with the chosen algorithm, or "auto" for the static rule.
      avals: shapes and dtypes of the operands to send.
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
    """Return a call's key in plans, equal on all its ranks; None if it is not planned or recorded.

    Args:
      call: as in the program.
      operands: shapes and dtypes.
      groups: of devices, by rank, for a call along axes.
      platforms: the platforms to lower for.
    """
    if call.collective in _UNPLANNED or call.backend == "xla":
        return None
    # A process gets pinned plans when it joins.
    if not _is_recording() and not (comm.is_initialized() and comm.plans() is not None):
        return None
    return {
        "collective": call.collective,
        "reduce_op": call.reduce_op,
        "root": call.root,
        "ranks": call.size,
        "members": _members(call, groups),
        "operands": operands,
        "details": " ".join(word for name, word in _DETAILS.items() if getattr(call, name)),
        "platform": " ".join(platforms),
        "backend": call.backend,
        "algorithm": call.algorithm,
        "codec": call.codec,
    }


# Attributes of a call, and their words in files of plans.
_DETAILS = {
    "reverse": "reverse",
    "has_ref": "referenced",
    "feedback": "feedback",
    "adds_residual": "carries",
}


def _members(call: Call, groups: Sequence[Sequence[Any]] | None) -> str:
    processes = _processes(call, groups)
    if call.comm is None:
        # Include all groups: they may share links, and all ranks know them.
        return "processes " + " | ".join(map(_runs, processes)) if processes else "ranks on axes"
    # Equal calls on other communicators have the same plan: number the hosts from 0.
    hosts = comm.hosts()
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts[p] for p in processes[0]))}
    return "hosts " + _runs([numbers[hosts[process]] for process in processes[0]])


def _runs(numbers: Sequence[int]) -> str:
    found = [(number, len(list(run))) for number, run in itertools.groupby(numbers)]
    return " ".join(f"{number}*{count}" if count > 1 else str(number) for number, count in found)


def pinned(site: Mapping[str, Any] | None, call: Call, where: str) -> Call | None:
    """Return the call with its pinned plan; None if it has no pinned plan.

    Args:
      site: the result of `site_of`.
      call: as in the program.
      where: the source line.

    Raises:
      InvalidArgumentError: when the plan lacks the call, or has a codec that the program does not
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


def resolved(call: Call) -> Call:
    """Return the call as it runs without a profile: with one codec instead of a choice."""
    return call.replace(codec=codecs.canonical(call.codec))


def choice_of(
    call: Call, avals: Sequence[Any], groups: Sequence[Sequence[Any]] | None
) -> Any | None:
    """Choose by the ranks' profile how the engine runs a call on the host.

    Args:
      call: with "auto" for the options to choose.
      avals: shapes and dtypes of the operands to send.
      groups: of devices, by rank, for a call along axes.

    Returns:
      A `jaxccomp.schedules.Choice`; None without a profile, or if there is nothing to choose.
    """
    planner, sizes = comm.planner(), _sizes(avals)
    specs = codecs.choices(call.codec)
    is_open = call.algorithm == "auto" or len(specs) > 1
    if planner is None or sizes is None or not (is_open or _is_recording()):
        return None
    # Predictions do not include the cost of residuals, delta bases or reverse scans.
    if call.feedback or call.adds_residual or call.has_ref or call.reverse:
        return None
    return planner.choose(
        call.collective,
        algorithm=call.algorithm,
        codecs=specs,
        sizes=sizes,
        groups=_processes(call, groups),
        root=max(call.root, 0),
        every_option=_is_recording(),  # the recorder shows all of them
    )


def _sizes(avals: Sequence[Any]) -> tuple[tuple[str, int], ...] | None:
    sizes: Counter[str] = Counter()
    for aval in avals:
        if not hasattr(aval, "dtype") or not all(isinstance(n, int) for n in aval.shape):
            return None  # symbolic shapes of exported programs
        sizes[aval.dtype.name] += math.prod(aval.shape) * aval.dtype.itemsize
    return tuple(sorted(sizes.items()))


def _processes(call: Call, groups: Sequence[Sequence[Any]] | None) -> tuple[tuple[int, ...], ...]:
    if call.comm is not None:
        return (call.comm.processes,)
    numbers = comm.process_numbers()
    return tuple(tuple(numbers[device.process_index] for device in group) for group in groups or ())


# --- Measured times, from the engine's log --------------------------------------------------------

# The keys of the engine's rows (`jaxccomp.stats.LoggedCall`); the algorithm is the requested one.
_KEY = (
    *("backend", "operation", "reduce_op", "root", "operands", "where", "communicator", "ranks"),
    *("codec", "asked_algorithm"),
)


def measured_rows() -> Mapping[Hashable, Mapping[str, Any]]:
    """Return the rows of timed call sites, by the keys of `measured_key_of`."""
    if not engine.available():
        return {}
    found = [row for row in engine.load().call_log()[0] if row["backend"] != "xla"]  # not timed
    # If several rows have one key, keep the row with the most calls: it comes last.
    return {_key(row): row for row in sorted(found, key=lambda row: row["calls"])}


def measured_key_of(lowered: Lowered) -> Hashable:
    """Return the key by which a lowered call and the row of its call site are matched."""
    call = lowered.call
    return _key(
        {
            "backend": lowered.backend,
            "operation": call.collective,
            "reduce_op": call.reduce_op,
            "root": call.root,
            "operands": lowered.operands,
            "where": lowered.where,
            "communicator": "" if call.comm is None else call.comm.name,
            "ranks": call.size,
            "codec": call.codec,
            "asked_algorithm": call.algorithm,
        }
    )


def _key(row: Mapping[str, Any]) -> Hashable:
    return tuple(row[name] for name in _KEY)

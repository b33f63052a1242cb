"""How the collectives of a program run, with predicted and measured times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from jaxccomp import errors
from jaxccomp._native import terminal
from jaxccomp._primitives import planning

P = ParamSpec("P")
# Labels in place of the algorithm for calls that the engine does not run.
_SHOWN_BACKENDS = {"mpi": "MPI", "xla": "jax.lax"}
_COLUMNS = (
    *("line", "operation", "ranks", "bytes", "algorithm", "codec", "predicted", "measured"),
    "second best",
)


@dataclasses.dataclass(frozen=True)
class ExplainedCall:
    """One collective of a program.

    Attributes:
      where: its line, such as "train.py:41".
      collective: such as "bcast".
      ranks: the number of ranks.
      size_bytes: the operand of a rank; None if the shapes are not known.
      backend: "native" (the engine), "mpi", "xla" (collectives of ``jax.lax``), or the name of a
        registered backend.
      algorithm: the algorithm that runs; "auto" without a prediction, when the engine's static rule
        chooses.
      codec: a spec; "raw" for none.
      seconds: the time predicted from the profile; None without a prediction.
      second_best: algorithm, codec and time of the fastest other candidate; None if there is none.
        It may be up to 5 % faster than the chosen one: smaller gains do not change the choice.
      measured_seconds: the median of the last 64 calls in this process, including waits for other
        ranks; None if there are none, and for `backend` "xla", which the engine does not time.
      measured_calls: calls without an error since the last `jaxccomp.stats.reset`, counted for each
        device.
    """

    where: str
    collective: str
    ranks: int
    size_bytes: int | None
    backend: str
    algorithm: str
    codec: str
    seconds: float | None
    second_best: tuple[str, str, float] | None
    measured_seconds: float | None
    measured_calls: int

    @property
    def mover(self) -> str:
        """The name of `backend` in version 0.1."""
        errors.warn_renamed("ExplainedCall.mover", "backend")
        return self.backend


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The collectives of a program; ``str()`` is a table.

    Attributes:
      calls: in the order in which they were lowered.
    """

    calls: tuple[ExplainedCall, ...]
    _lowered: tuple[planning.Lowered, ...] = dataclasses.field(
        default=(), repr=False, compare=False
    )

    @property
    def plans(self) -> planning.Plans:
        """The plans of the calls, which `jaxccomp.plan` can save and compare.

        Raises:
          InvalidArgumentError: when one call has two different plans.
        """
        plans = planning.no_plans()
        planning.add_plans(plans, self._lowered)
        return plans

    def __str__(self) -> str:
        return "\n".join(terminal.lines([_COLUMNS, *map(_texts, self.calls)]))


def explain(function: Callable[P, Any]) -> Callable[P, Explanation]:
    """Explains how the collectives of a function run and how long they take, without running them.

    The function is traced and lowered for the arguments' shapes; nothing is sent. If ranks share a
    profile (docs/planner.md), each call that the engine runs on the host has its predicted time and
    the second-fastest candidate. A call that has run in this process, with the same arguments and
    at the same line, has its measured time (`jaxccomp.stats.log`); the function may have been
    jitted and run before. A collective in a loop is listed once.

    Args:
      function: as for `jax.jit`; it may be jitted.

    Returns:
      A function of the same arguments that returns the `Explanation`; its `Explanation.plans` can
      be saved and pinned.

    Raises:
      Any error of tracing the function.

    Example:
      >>> import jax.numpy as jnp
      >>> def mean(x):
      ...     return jaxccomp.allreduce(x, op="mean", codec="auto")
      >>> (call,) = jaxccomp.explain(mean)(jnp.ones(1000, jnp.float32)).calls
      >>> call.collective, call.size_bytes, call.backend
      ('allreduce', 4000, 'native')
    """

    def explained(*args: P.args, **kwargs: P.kwargs) -> Explanation:
        with planning.recorded() as lowered:
            planning.lower_anew(function, *args, **kwargs)
        rows = planning.measured_rows()
        calls = tuple(_call(each, rows.get(planning.measured_key_of(each))) for each in lowered)
        return Explanation(calls, tuple(lowered))

    return explained


def _call(lowered: planning.Lowered, row: Mapping[str, Any] | None) -> ExplainedCall:
    call, choice = lowered.call, lowered.choice
    calls = 0 if row is None else row["calls"] - row["failed"]
    second = None
    if choice is not None and choice.others:
        option = choice.others[0]
        second = _runs(option), option.codec, option.seconds
    return ExplainedCall(
        where=lowered.where,
        collective=call.collective,
        ranks=call.size,
        size_bytes=None if lowered.sizes is None else sum(size for _, size in lowered.sizes),
        backend=lowered.backend,
        algorithm=call.algorithm if choice is None else _runs(choice.chosen),
        codec=call.codec,
        seconds=None if choice is None else choice.chosen.seconds,
        second_best=second,
        measured_seconds=row["median_seconds"] if row is not None and calls > 0 else None,
        measured_calls=calls,
    )


def _runs(option: Any) -> str:
    return option.runs if option.algorithm == "auto" else option.algorithm


def _texts(call: ExplainedCall) -> tuple[str, ...]:
    second = ""
    if call.second_best is not None:
        algorithm, codec, seconds = call.second_best
        second = f"{algorithm}, {codec}: {_time(seconds)}"
    return (
        call.where,
        call.collective,
        str(call.ranks),
        "?" if call.size_bytes is None else str(call.size_bytes),
        _shown_algorithm(call),
        call.codec,
        "not priced" if call.seconds is None else _time(call.seconds),
        _measured(call),
        second,
    )


def _shown_algorithm(call: ExplainedCall) -> str:
    if call.backend == "native":
        return call.algorithm
    return _SHOWN_BACKENDS.get(call.backend, call.backend)


def _measured(call: ExplainedCall) -> str:
    if call.measured_seconds is None:
        return "not run"
    times = f"{call.measured_calls} call{'s' * (call.measured_calls > 1)}"
    return f"{_time(call.measured_seconds)} ({times})"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"

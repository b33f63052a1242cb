"""Plans of a program's collectives: recorded, saved, pinned and compared.

A *plan* says how a call runs: its backend, its algorithm with the chunk, and its codec. Where a
program leaves these open ("auto"), they depend on a profile, on options and on the release.
The option ``plan`` (``JAXCCOMP_PLAN=plan.json``) names a file of plans: a call that it has runs
exactly so, and a call that it does not have is an error that names it, or is planned afresh where
the file says ``"missing": "auto"``. ``python -m jaxccomp plan diff A B`` compares two files.
docs/planner.md has more.

Example:
  >>> import jax.numpy as jnp
  >>> def mean(x):
  ...     return jaxccomp.allreduce(x, op="mean", codec="auto")
  >>> plans = jaxccomp.plan.of(mean)(jnp.ones(1000, jnp.float32))
  >>> [(call.collective, call.operands, plan.codec) for call, plan in plans.calls.items()]
  [('allreduce', 'float32[1000]', 'raw')]
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec

from jaxccomp import comm, schedules
from jaxccomp._primitives import planning
from jaxccomp.schedules import Difference, Plan, PlanDiff, PlannedCall, Plans
from jaxccomp.schedules import load_plans as load

P = ParamSpec("P")

__all__ = [
    "Difference",
    "Plan",
    "PlanDiff",
    "PlannedCall",
    "Plans",
    "diff",
    "load",
    "of",
    "record",
]


@contextlib.contextmanager
def record() -> Iterator[Plans]:
    """Records the plans of all calls that this thread compiles within a ``with`` block.

    Calls of functions that JAX has compiled already are not compiled again, and so not recorded:
    record the first call of a function, or its ``.lower(...)``. Ranks of one program have the same
    plans, so one of them saves the file. Where ranks run different programs, it has the calls of
    the one that saves it.

    Yields:
      The `Plans`, which are empty until the block ends.

    Raises:
      InvalidArgumentError: where one call was planned in two ways.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> with jaxccomp.plan.record() as plans:
      ...     _ = jax.jit(lambda x: jaxccomp.bcast(x, root=0)).lower(jnp.ones(8, jnp.float32))
      >>> plans.save("plan.json")
      >>> bool(jaxccomp.plan.diff(plans, "plan.json"))
      False
    """
    world = comm.hosts()
    plans = Plans(tuple(Counter(world).values()))
    with planning.recorded() as lowered:
        yield plans
    for each in lowered:
        if each.site is not None:
            plans.add(PlannedCall.of(each.site), _plan(each, world), each.where)


def of(function: Callable[P, Any]) -> Callable[P, Plans]:
    """The plans of a function's calls, which is compiled for its arguments and not run.

    Args:
      function: as `jax.jit` takes it; it may be jitted.

    Returns:
      A function of the same arguments that gives the `Plans`.

    Raises:
      Whatever tracing the function raises.

    Example:
      >>> import jax.numpy as jnp
      >>> plans = jaxccomp.plan.of(lambda x: jaxccomp.bcast(x, root=0))(jnp.ones(8, jnp.float32))
      >>> [str(call) for call in plans.calls]
      ['bcast of float32[8] on 1 ranks (hosts 0), root 0']
    """

    def planned(*args: P.args, **kwargs: P.kwargs) -> Plans:
        with record() as plans:
            planning.lower_anew(function, *args, **kwargs)
        return plans

    return planned


def diff(before: Plans | str | os.PathLike[str], after: Plans | str | os.PathLike[str]) -> PlanDiff:
    """What differs between two plans.

    Args:
      before: plans, or a file.
      after: the same.

    Returns:
      Calls that one of them lacks, or that run differently; false where there are none.

    Raises:
      InvalidArgumentError: for a file that cannot be read, or holds what cannot be.

    Example:
      >>> import jax.numpy as jnp
      >>> def plans(n):
      ...     return jaxccomp.plan.of(lambda x: jaxccomp.bcast(x, root=0))(jnp.ones(n, jnp.int8))
      >>> [str(each.call.operands) for each in jaxccomp.plan.diff(plans(8), plans(9)).calls]
      ['int8[8]', 'int8[9]']
    """
    both = [each if isinstance(each, Plans) else load(each) for each in (before, after)]
    return schedules.diff_plans(*both)


def _plan(lowered: planning.Lowered, world: tuple[int, ...]) -> Plan:
    call, backend = lowered.call, lowered.mover
    algorithm = call.algorithm
    if backend == "native":
        if algorithm == "auto" and lowered.choice is not None:
            algorithm = lowered.choice.chosen.runs
        elif algorithm == "auto" and lowered.is_on_cpus and lowered.sizes is not None:
            hosts = [[world[process] for process in group] for group in lowered.groups]
            algorithm = schedules.static_rule(call.collective, hosts, lowered.sizes, call.codec)
        algorithm = schedules.with_chunk(algorithm)
    return Plan(backend, algorithm, call.codec)

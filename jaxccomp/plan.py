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
  >>> plans = jaxccomp.explain(mean)(jnp.ones(1000, jnp.float32)).plans
  >>> [(call.collective, call.operands, plan.codec) for call, plan in plans.calls.items()]
  [('allreduce', 'float32[1000]', 'raw')]
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from jaxccomp._primitives import planning
from jaxccomp.schedules import _plans
from jaxccomp.schedules._plans import Difference, Plan, PlanDiff, PlannedCall, Plans, load

__all__ = [
    "Difference",
    "Plan",
    "PlanDiff",
    "PlannedCall",
    "Plans",
    "diff",
    "load",
    "record",
]


@contextlib.contextmanager
def record() -> Iterator[Plans]:
    """Records the plans of all calls that this thread compiles within a ``with`` block.

    Calls of functions that JAX has compiled already are not compiled again, and so not recorded:
    record the first call of a function, or its ``.lower(...)``; `jaxccomp.explain` compiles a
    function anew, and its result has plans, too. Ranks of one program have the same
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
    plans = planning.no_plans()
    with planning.recorded() as lowered:
        yield plans
    planning.add_plans(plans, lowered)


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
      ...     x = jnp.ones(n, jnp.int8)
      ...     return jaxccomp.explain(lambda x: jaxccomp.bcast(x, root=0))(x).plans
      >>> [str(each.call.operands) for each in jaxccomp.plan.diff(plans(8), plans(9)).calls]
      ['int8[8]', 'int8[9]']
    """
    both = [each if isinstance(each, Plans) else load(each) for each in (before, after)]
    return _plans.diff(*both)

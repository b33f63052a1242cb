"""Plans of a program's collectives: recorded, saved, pinned and compared.

A *plan* sets how a call runs: its backend, its algorithm with the chunk, and its codec. If a
program leaves these open ("auto"), they depend on a profile, on options and on the release.
The option ``plan`` (``JAXCCOMP_PLAN=plan.json``) names a file of plans: its calls run by their
plans; any other call is an error that names the call, or is planned if the file says
``"missing": "auto"``. ``python -m jaxccomp plan diff A B`` compares two files. See docs/planner.md.

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

    Functions that JAX has already compiled are not recorded: record the first call of a function,
    or its ``.lower(...)``. `jaxccomp.explain` recompiles a function; its result has plans, too.
    Ranks of one program have the same plans, so one of them saves the file. If ranks run different
    programs, the file has only the calls of the rank that saves it.

    Yields:
      The `Plans`, which are empty until the block ends.

    Raises:
      InvalidArgumentError: if one call was planned in two ways.

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
    """Compares two sets of plans.

    Args:
      before: plans, or the path of a file of plans.
      after: likewise.

    Returns:
      The calls that one set lacks, or that run differently; false if there are none.

    Raises:
      InvalidArgumentError: for a file that cannot be read or has an invalid value.

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

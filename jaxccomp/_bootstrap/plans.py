"""Agreement of all ranks on pinned plans."""

from __future__ import annotations

from collections.abc import Sequence

from jaxccomp import config, errors
from jaxccomp._bootstrap import shared_files
from jaxccomp._bootstrap.peer_info import Row, Share
from jaxccomp._bootstrap.shared_files import Own
from jaxccomp.schedules import _plans
from jaxccomp.schedules._plans import Plans

_RECORD = "Record them anew in this world (jaxccomp.plan)"


def own() -> Own:
    """Read the file that the option names."""
    return shared_files.own("plan", _plans.read)


def agree(share: Share, rows: Sequence[Row], mine: Own, hosts: Sequence[int]) -> Plans | None:
    """Return the plans of process 0; None if no process names any.

    Args:
      share: an allgather of rows of integers.
      rows: the rows of all processes.
      mine: this process's plans.
      hosts: by process, a number for its host.

    Raises:
      InitializationError: on all ranks, if they name different plans, or plans that do not fit.
    """
    data = shared_files.agree("plan", share, [(row.plan, row.plan_hash) for row in rows], mine)
    if data is None:
        return None
    try:
        plans = _plans.parse(data, "the plan of rank 0")
    except errors.JaxccompError as error:
        raise errors.InitializationError(f"{error} {_RECORD}.") from None
    shared_files.check_world("plan", plans.world, hosts, _RECORD)
    specs = dict.fromkeys(plan.codec for plan in plans.calls.values())
    shared_files.check_codecs("plan", share, specs, _RECORD)
    return plans


def refuse(why: str) -> None:
    """Raises if the option names plans: processes cannot share them here, nor ignore them."""
    if config.get("plan"):
        raise errors.EngineUnavailableError(
            f"the option plan names {config.get('plan')!r}, but {why}. Leave the option out there."
        )

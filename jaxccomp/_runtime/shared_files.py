"""Exchange of the files that options name (profile, plan): all ranks use process 0's file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from jaxccomp import config, errors
from jaxccomp._native import engine
from jaxccomp._native.json_files import MAX_BYTES, layout
from jaxccomp._runtime.peer_info import Row, Share, share_bytes
from jaxccomp.schedules import Planner, _plans, parse_profile, read_profile
from jaxccomp.schedules._plans import Plans

T = TypeVar("T")

_UNREADABLE = -1


class Own(NamedTuple):
    """This process's file, or its read error, raised after the exchange so that all ranks raise."""

    data: bytes = b""
    error: errors.InvalidArgumentError | None = None

    def row(self) -> tuple[int, int]:
        """Return the row for the other processes: size in bytes, and hash."""
        size = _UNREADABLE if self.error else len(self.data)
        return size, _hash(self.data)


def _own(option: str, read: Callable[[str], bytes]) -> Own:
    """Read the file that an option names.

    Args:
      option: the option's name.
      read: returns the bytes of a file.
    """
    path = config.get(option)
    if not path:
        return Own()
    try:
        return Own(read(path))
    except errors.InvalidArgumentError as error:
        return Own(error=error)


def _agree(
    option: str,
    share: Share,
    rows: Sequence[tuple[int, int]],
    mine: Own,
    parse: Callable[[bytes, str], T],
    remedy: str,
) -> T | None:
    """Return the content of process 0's file; None if no process names a file.

    Args:
      option: the option's name, which also names the kind of file.
      share: an allgather of rows of integers.
      rows: `Own.row` of all processes.
      mine: this process's file.
      parse: returns the content of a file with these bytes and this name in errors.
      remedy: how to get a file that fits.

    Raises:
      InitializationError: on all ranks, if they name different files, or one that is invalid.
    """
    if not any(size for size, _ in rows):
        return None
    _check_equal(option, rows, mine)
    size, hashed = rows[0]
    if not 0 < size <= MAX_BYTES:
        raise errors.InitializationError(
            f"rank 0 reports a {option} of {size} bytes; 1 to {MAX_BYTES} bytes are allowed."
        )
    data = share_bytes(share, mine.data or bytes(size))[0][:size]
    if _hash(data) != hashed:
        raise errors.InitializationError(
            f"the {option} of rank 0 did not arrive as it was sent; start the program again."
        )
    try:
        return parse(data, f"the {option} of rank 0")
    except errors.JaxccompError as error:
        raise errors.InitializationError(f"{error} {remedy}.") from None


def _check_equal(option: str, rows: Sequence[tuple[int, int]], mine: Own) -> None:
    unreadable = [rank for rank, (size, _) in enumerate(rows) if size == _UNREADABLE]
    if mine.error is not None:
        raise errors.InitializationError(f"the option {option}: {mine.error}")
    if unreadable:
        raise errors.InitializationError(
            f"ranks {unreadable} cannot read the file that their option {option} names; their "
            "errors show the reason. Name an existing file, or set the option on rank 0 only: all "
            f"ranks get its {option}."
        )
    others = [rank for rank, each in enumerate(rows) if each[0] and each != rows[0]]
    if others:
        what = f"another {option} than rank 0" if rows[0][0] else f"a {option}, and rank 0 none"
        raise errors.InitializationError(
            f"ranks {others} name {what} by the option {option}. All ranks use one {option}: "
            "give all of them the same file, or set the option on rank 0 only."
        )


def check_world(option: str, described: Sequence[int], hosts: Sequence[int], remedy: str) -> None:
    """Raise if a file describes other hosts than the job's.

    Args:
      option: the option that names the file.
      described: the number of processes of each host, from the file.
      hosts: by process, a number for its host.
      remedy: how to get a file that fits.
    """
    here = list(Counter(hosts).values())
    if list(described) != here:
        raise errors.InitializationError(
            f"the {option} of rank 0 describes {layout(described)}, but this world has "
            f"{layout(here)}. {remedy}; or leave the option {option} out."
        )


def check_codecs(option: str, share: Share, specs: Iterable[str], remedy: str) -> None:
    """Raise if a rank lacks one of a file's codecs: all ranks must run the same codecs.

    Args:
      option: the option that names the file.
      share: an allgather of rows of integers.
      specs: the codecs' specs.
      remedy: how to get a file that fits.
    """
    missing = {}
    for spec in specs:
        try:
            engine.load().describe_codec(spec)
        except (ValueError, RuntimeError) as error:
            missing[spec] = str(error)
    lacking = [rank for rank, row in enumerate(share((len(missing),))) if row[0]]
    if not lacking:
        return
    why = "; ".join(f"{spec!r}: {error}" for spec, error in missing.items())
    raise errors.InitializationError(
        f"the {option} of rank 0 has codecs that ranks {lacking} do not have"
        + (f" ({why})" if why else "")
        + f". {remedy}."
    )


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


# --- Profiles -------------------------------------------------------------------------------------

_TUNE = "`python -m jaxccomp tune links --output FILE`, run by these ranks, writes one that fits"


def own_profile() -> Own:
    """Read the file that the option names."""
    return _own("profile", read_profile)


def agree_on_profile(
    share: Share, rows: Sequence[Row], mine: Own, hosts: Sequence[int]
) -> Planner | None:
    """Return a planner with the profile of process 0; None if no process names one.

    Args:
      share: an allgather of rows of integers.
      rows: the rows of all processes.
      mine: this process's profile.
      hosts: by process, a number for its host.

    Raises:
      InitializationError: on all ranks, if they name different profiles, or one that does not fit.
    """
    named = [(row.profile, row.profile_hash) for row in rows]
    cluster = _agree("profile", share, named, mine, parse_profile, _TUNE)
    if cluster is None:
        return None
    described = [
        -(-each.ranks // cluster.ranks_per_process)
        for each in cluster.hosts
        for _ in range(each.count)
    ]
    check_world("profile", described, hosts, _TUNE)
    check_codecs("profile", share, cluster.codecs, _TUNE)
    return Planner(cluster, hosts)


# --- Pinned plans ---------------------------------------------------------------------------------

_RECORD = "Record them anew in this world (jaxccomp.plan)"


def own_plans() -> Own:
    """Read the file that the option names."""
    return _own("plan", _plans.read)


def agree_on_plans(
    share: Share, rows: Sequence[Row], mine: Own, hosts: Sequence[int]
) -> Plans | None:
    """Return the plans of process 0; None if no process names any.

    Args:
      share: an allgather of rows of integers.
      rows: the rows of all processes.
      mine: this process's plans.
      hosts: by process, a number for its host.

    Raises:
      InitializationError: on all ranks, if they name different plans, or plans that do not fit.
    """
    named = [(row.plan, row.plan_hash) for row in rows]
    plans = _agree("plan", share, named, mine, _plans.parse, _RECORD)
    if plans is None:
        return None
    check_world("plan", plans.world, hosts, _RECORD)
    specs = dict.fromkeys(plan.codec for plan in plans.calls.values())
    check_codecs("plan", share, specs, _RECORD)
    return plans


def refuse_plans(why: str) -> None:
    """Raise if the option names plans; for processes that cannot share plans, for this reason."""
    if config.get("plan"):
        raise errors.EngineUnavailableError(
            f"the option plan names {config.get('plan')!r}, but {why}. Leave the option out."
        )

"""The profile that all ranks choose by: the first one's, which they agree on when they join."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jaxccomp import config, errors
from jaxccomp._bootstrap.peer_info import Row, Share, share_bytes
from jaxccomp._native import engine
from jaxccomp.schedules import MOST_PROFILE_BYTES, Cluster, Planner, parse_profile, read_profile

_UNREADABLE = -1
_TUNE = "`python -m jaxccomp tune links --output FILE`, run by these ranks, writes one that fits"


class Own(NamedTuple):
    """What this process names; the error, where it cannot be read, is told once all have met."""

    data: bytes = b""
    error: errors.InvalidArgumentError | None = None

    def row(self) -> tuple[int, int]:
        """As others are told of it: its bytes, and their hash."""
        size = _UNREADABLE if self.error else len(self.data)
        return size, _hash(self.data)


def own() -> Own:
    """The file that the option names."""
    path = config.get("profile")
    if not path:
        return Own()
    try:
        return Own(read_profile(path))
    except errors.InvalidArgumentError as error:
        return Own(error=error)


def agree(share: Share, rows: Sequence[Row], mine: Own, hosts: Sequence[int]) -> Planner | None:
    """What chooses by the profile of process 0; None where no process names one.

    Args:
      share: gives all rows of integers for this process's own.
      rows: of all processes.
      mine: this process's profile.
      hosts: by process, a number for its host.

    Raises:
      InitializationError: on all ranks, where they name different ones, or one that does not fit.
    """
    if not any(row.profile for row in rows):
        return None
    _check_equal(rows, mine)
    data = _from_first(share, rows[0], mine.data)
    cluster = _read(data, hosts)
    _check_codecs(share, cluster)
    return Planner(cluster, hosts)


def _check_equal(rows: Sequence[Row], mine: Own) -> None:
    unreadable = [rank for rank, row in enumerate(rows) if row.profile == _UNREADABLE]
    if mine.error is not None:
        raise errors.InitializationError(f"the option profile: {mine.error}")
    if unreadable:
        raise errors.InitializationError(
            f"ranks {unreadable} cannot read the file that their option profile names; their "
            "errors say why. Name a file that is there, or leave the option to rank 0, whose "
            "profile all ranks get."
        )
    named = [(row.profile, row.profile_hash) for row in rows]
    others = [rank for rank, each in enumerate(named) if each[0] and each != named[0]]
    if others:
        what = "another profile than rank 0" if named[0][0] else "a profile, and rank 0 none"
        raise errors.InitializationError(
            f"ranks {others} name {what} by the option profile. All ranks choose by one: give "
            "all of them the same file, or name it on rank 0 alone."
        )


def _from_first(share: Share, first: Row, data: bytes) -> bytes:
    size = first.profile
    if not 0 < size <= MOST_PROFILE_BYTES:
        raise errors.InitializationError(
            f"the profile of rank 0 cannot have {size} bytes, which it says; at most "
            f"{MOST_PROFILE_BYTES} are shared."
        )
    data = share_bytes(share, data or bytes(size))[0][:size]
    if _hash(data) != first.profile_hash:
        raise errors.InitializationError(
            "the profile of rank 0 did not arrive as it was sent; start the program again."
        )
    return data


def _read(data: bytes, hosts: Sequence[int]) -> Cluster:
    place = "the profile of rank 0"
    try:
        cluster = parse_profile(data, place)
    except errors.JaxccompError as error:
        raise errors.InitializationError(f"{error} {_TUNE}.") from None
    described = [
        -(-each.ranks // cluster.ranks_per_process)
        for each in cluster.hosts
        for _ in range(each.count)
    ]
    here = list(Counter(hosts).values())
    if described != here:
        raise errors.InitializationError(
            f"{place} describes {_layout(described)}, but this world has {_layout(here)}. {_TUNE}; "
            "or leave the option profile out."
        )
    return cluster


def _layout(counts: Sequence[int]) -> str:
    shown = ", ".join(map(str, counts[:8])) + (", ..." if len(counts) > 8 else "")
    return f"{sum(counts)} processes on {len(counts)} hosts ({shown})"


def _check_codecs(share: Share, cluster: Cluster) -> None:
    """All ranks have all codecs of the profile, so that a choice is one for all."""
    missing = {}
    for spec in cluster.codecs:
        try:
            engine.load().describe_codec(spec)
        except (ValueError, RuntimeError) as error:
            missing[spec] = str(error)
    lacking = [rank for rank, row in enumerate(share((len(missing),))) if row[0]]
    if not lacking:
        return
    why = "; ".join(f"{spec!r}: {error}" for spec, error in missing.items())
    raise errors.InitializationError(
        f"the profile of rank 0 has codecs that ranks {lacking} do not have"
        + (f" ({why})" if why else "")
        + f". {_TUNE}."
    )


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)

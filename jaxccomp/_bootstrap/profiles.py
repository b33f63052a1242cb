"""Agreement of all ranks on a profile."""

from __future__ import annotations

from collections.abc import Sequence

from jaxccomp import errors
from jaxccomp._bootstrap import shared_files
from jaxccomp._bootstrap.peer_info import Row, Share
from jaxccomp._bootstrap.shared_files import Own
from jaxccomp.schedules import Planner, parse_profile, read_profile

_TUNE = "`python -m jaxccomp tune links --output FILE`, run by these ranks, writes one that fits"


def own() -> Own:
    """Read the file that the option names."""
    return shared_files.own("profile", read_profile)


def agree(share: Share, rows: Sequence[Row], mine: Own, hosts: Sequence[int]) -> Planner | None:
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
    data = shared_files.agree("profile", share, named, mine)
    if data is None:
        return None
    try:
        cluster = parse_profile(data, "the profile of rank 0")
    except errors.JaxccompError as error:
        raise errors.InitializationError(f"{error} {_TUNE}.") from None
    described = [
        -(-each.ranks // cluster.ranks_per_process)
        for each in cluster.hosts
        for _ in range(each.count)
    ]
    shared_files.check_world("profile", described, hosts, _TUNE)
    shared_files.check_codecs("profile", share, cluster.codecs, _TUNE)
    return Planner(cluster, hosts)

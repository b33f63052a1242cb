"""Profiles as files: read and written whole."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from jaxccomp import errors
from jaxccomp.schedules import _cluster as clusters

# Of one that ranks share when they join; measured ones have some KiB.
MOST_PROFILE_BYTES = 1 << 18


def write(path: str | os.PathLike[str], content: Mapping[str, Any]) -> clusters.Cluster:
    """Writes a profile, so that a reader finds all of it or the file that was there before.

    Args:
      path: of the file.
      content: of the profile, without its version.

    Returns:
      The cluster, as it is read.

    Raises:
      InvalidArgumentError: for content that could not be read, or a file that cannot be written.
    """
    target = pathlib.Path(path)
    data = json.dumps({"version": clusters.VERSION} | dict(content), indent=1).encode() + b"\n"
    cluster = clusters.parse(data, target.name)
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
            file.write(data)
        # Temporary files are for their owner alone; this one is as others that a program makes.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(file.name, 0o666 & ~umask)
        os.replace(file.name, target)
    except OSError as error:
        raise errors.InvalidArgumentError(f"{target} cannot be written: {error}.") from None
    return cluster


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a profile, which are not yet checked.

    Raises:
      InvalidArgumentError: when there is no such file, or it is longer than ranks share.
    """
    target = pathlib.Path(path)
    try:
        with target.open("rb") as file:
            data = file.read(MOST_PROFILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise errors.InvalidArgumentError(
            f"the profile {str(path)!r} cannot be read: {error}. "
            "`python -m jaxccomp tune links --output FILE` writes one."
        ) from None
    if not 0 < len(data) <= MOST_PROFILE_BYTES:
        raise errors.InvalidArgumentError(
            f"the profile {str(path)!r} has {'no' if not data else 'more than'} "
            f"{'' if not data else f'{MOST_PROFILE_BYTES} '}bytes; "
            "`python -m jaxccomp tune links --output FILE` writes one of some KiB."
        )
    return data

"""Files that ranks share when they join: read and written whole, and of bounded length."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from jaxccomp import errors

# Of one that ranks share; measured profiles have some KiB.
MOST_BYTES = 1 << 18


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file so that a reader finds all of it, or the one that was there before.

    Raises:
      InvalidArgumentError: where it cannot be written.
    """
    target = pathlib.Path(path)
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


def read(path: str | os.PathLike[str], kind: str, remedy: str) -> bytes:
    """The bytes of a file, which are not yet checked.

    Args:
      path: of the file.
      kind: what errors call it.
      remedy: what writes such a file.

    Raises:
      InvalidArgumentError: when there is no such file, or it is longer than ranks share.
    """
    try:
        with pathlib.Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise errors.InvalidArgumentError(
            f"the {kind} {str(path)!r} cannot be read: {error}. {remedy}."
        ) from None
    if not 0 < len(data) <= MOST_BYTES:
        raise errors.InvalidArgumentError(
            f"the {kind} {str(path)!r} has {'no' if not data else f'more than {MOST_BYTES}'} "
            f"bytes; {remedy}."
        )
    return data


def loads(data: bytes, place: str) -> Any:
    """What JSON holds; ``place`` is what errors call the file.

    Raises:
      InvalidArgumentError: where it is none.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise errors.InvalidArgumentError(
            f"{place} is not JSON that can be read: {error}. It may have been cut; write it anew."
        ) from None


def layout(counts: Sequence[int]) -> str:
    """Processes by host, in words."""
    shown = ", ".join(map(str, counts[:8])) + (", ..." if len(counts) > 8 else "")
    return f"{sum(counts)} processes on {len(counts)} hosts ({shown})"


def digest(data: bytes) -> str:
    """Tells contents apart."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()

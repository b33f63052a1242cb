"""JSON files: reading with errors that name the file, and atomic writing."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from jaxccomp import errors

# The largest file that ranks share when they join; measured profiles have a few KiB.
MAX_BYTES = 1 << 18


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file atomically: a reader finds the old file or the whole new one.

    Raises:
      InvalidArgumentError: if it cannot be written.
    """
    target = pathlib.Path(path)
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
            file.write(data)
        # Temporary files are readable by their owner alone; give this one the usual permissions.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(file.name, 0o666 & ~umask)
        os.replace(file.name, target)
    except OSError as error:
        raise errors.InvalidArgumentError(f"{target} cannot be written: {error}.") from None


def read(
    path: str | os.PathLike[str], kind: str, remedy: str, max_bytes: int | None = MAX_BYTES
) -> bytes:
    """Returns the bytes of a file, without checking them.

    Args:
      path: the file.
      kind: the kind of file, for errors.
      remedy: how to write such a file, for errors.
      max_bytes: the largest size allowed; None for any.

    Raises:
      InvalidArgumentError: if the file is missing, empty, or too long.
    """
    data = _read(path, kind, remedy, -1 if max_bytes is None else max_bytes + 1)
    if not data or (max_bytes is not None and len(data) > max_bytes):
        raise errors.InvalidArgumentError(
            f"the {kind} {str(path)!r} has {'no' if not data else f'more than {max_bytes}'} "
            f"bytes; {remedy}."
        )
    return data


def _read(path: str | os.PathLike[str], kind: str, remedy: str, count: int) -> bytes:
    try:
        with pathlib.Path(path).open("rb") as file:
            return file.read(count)
    except (OSError, ValueError) as error:
        raise errors.InvalidArgumentError(
            f"the {kind} {str(path)!r} cannot be read: {error}. {remedy}."
        ) from None


def loads(data: bytes, place: str) -> Any:
    """Parses JSON; ``place`` names the file in errors.

    Raises:
      InvalidArgumentError: if it is not JSON.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise errors.InvalidArgumentError(
            f"{place} is not JSON: {error}. The file may be truncated: write it again."
        ) from None


def lines(path: str | os.PathLike[str]) -> list[Any]:
    """Parses a file of one JSON value per line, as ``--json`` writes results.

    Raises:
      InvalidArgumentError: if it cannot be read, or a line is no JSON.
    """
    remedy = "`--json` writes one, with a line of JSON for each measurement"
    data = _read(path, "file of results", remedy, -1)
    return [
        loads(line, f"line {number} of {str(path)!r}")
        for number, line in enumerate(data.splitlines(), 1)
        if line.strip()
    ]


def keys_of(content: Any, place: str, keys: Sequence[str]) -> Mapping[str, Any]:
    """Returns ``content`` if it is an object with only known keys.

    Raises:
      InvalidArgumentError: if it is no object.
      UnknownNameError: for another key.
    """
    if not isinstance(content, Mapping):
        raise errors.InvalidArgumentError(
            f"{place} is an object with the keys {errors.listed(keys)}, not "
            f"{type(content).__name__}."
        )
    for key in content:
        if key not in keys:
            raise errors.unknown(f"key of {place}:", f"{key:.40}", keys)
    return content


def layout(counts: Sequence[int]) -> str:
    """Describes the number of processes on each host."""
    shown = ", ".join(map(str, counts[:8])) + (", ..." if len(counts) > 8 else "")
    return f"{sum(counts)} processes on {len(counts)} hosts ({shown})"


def digest(data: bytes) -> str:
    """A hash of the data, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()

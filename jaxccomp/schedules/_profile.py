"""Reads and writes profile files."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxccomp._native import json_files
from jaxccomp.schedules import _cluster as clusters

_TUNE = "`python -m jaxccomp tune links --output FILE` writes one of some KiB"


def cluster_of(content: Mapping[str, Any]) -> clusters.Cluster:
    """The cluster that a profile's content describes.

    Args:
      content: the profile's content, without its version.

    Raises:
      InvalidArgumentError: for an invalid value.
    """
    return clusters.load(_with_version(content))


def write(path: str | os.PathLike[str], content: Mapping[str, Any]) -> clusters.Cluster:
    """Writes a profile atomically.

    Args:
      path: the file.
      content: the profile's content, without its version.

    Returns:
      The cluster that it describes.

    Raises:
      InvalidArgumentError: for invalid content, or a file that cannot be written.
    """
    data = json.dumps(_with_version(content), indent=1).encode() + b"\n"
    cluster = clusters.parse(data, pathlib.Path(path).name)
    json_files.write(path, data)
    return cluster


def read(path: str | os.PathLike[str]) -> bytes:
    """The unchecked bytes of a profile.

    Raises:
      InvalidArgumentError: if the file is missing, or longer than ranks can share.
    """
    return json_files.read(path, "profile", _TUNE)


def _with_version(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"version": clusters.VERSION} | dict(content)

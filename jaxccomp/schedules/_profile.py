"""Profiles as files."""

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
      content: of the profile, without its version.

    Raises:
      InvalidArgumentError: where anything in it cannot be.
    """
    return clusters.load(_with_version(content))


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
    data = json.dumps(_with_version(content), indent=1).encode() + b"\n"
    cluster = clusters.parse(data, pathlib.Path(path).name)
    json_files.write(path, data)
    return cluster


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a profile, which are not yet checked.

    Raises:
      InvalidArgumentError: when there is no such file, or it is longer than ranks share.
    """
    return json_files.read(path, "profile", _TUNE)


def _with_version(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"version": clusters.VERSION} | dict(content)

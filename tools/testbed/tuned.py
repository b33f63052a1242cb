"""Profiles of testbeds, measured as users measure theirs: by the command itself."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from jaxccomp._bootstrap import ucx
from testbed import workers

if TYPE_CHECKING:
    from testbed.bed import Testbed

_WITHIN_SECONDS = 150.0


def fastest_profile(
    where: Testbed | int,
    path: pathlib.Path,
    tensors: Iterable[str],
    env: Mapping[str, str],
) -> str:
    """Writes the profile over the transport with the faster training step; over MPI without UCX.

    Args:
      where: as `workers.run` takes it.
      path: of the profile.
      tensors: files of what codecs are measured on.
      env: as `workers.run` takes it.

    Returns:
      What the commands say of the two transports.
    """
    if why := ucx.why_missing():
        profile(where, path, tensors, env=env)
        return f"over MPI, without UCX: {why}"
    each = [path.with_name(f"{path.name}.{transport}") for transport in ("mpi", "ucx")]
    for one in each:
        over = {"JAXCCOMP_TRANSPORT": one.suffix[1:]}
        profile(where, one, tensors, env=dict(env) | over)
    command = [sys.executable, "-P", "-m", "jaxccomp", "tune", "transport", *map(str, each)]
    return subprocess.run(
        [*command, "--output", str(path)], check=True, capture_output=True, text=True
    ).stdout


def profile(
    where: Testbed | int,
    path: pathlib.Path,
    tensors: Iterable[str],
    codecs: str = "lossless",
    env: dict[str, str] | None = None,
) -> None:
    """Writes the profile of the ranks that run there, by ``python -m jaxccomp tune links``.

    Args:
      where: as `workers.run` takes it.
      path: of the profile.
      tensors: files of what codecs are measured on.
      codecs: specs, separated by spaces.
      env: as `workers.run` takes it.

    Raises:
      FailedError: with the command's output, when it failed, or had no time for a codec.
    """
    program = ["-P", "-m", "jaxccomp", "tune", "links", "--output", str(path), "--codecs", codecs]
    program += ["--within", str(_WITHIN_SECONDS)]
    for each in tensors:
        program += ["--tensors", each]
    said = workers.output_of(program, where, env=env, timeout_seconds=_WITHIN_SECONDS + 200)
    found = json.loads(path.read_text(encoding="utf-8"))["codecs"]
    if left_out := set(codecs.split()) - set(found):
        raise workers.FailedError(f"the profile has no {', '.join(left_out)}: {said}")

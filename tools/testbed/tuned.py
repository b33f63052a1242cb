"""Measures profiles of testbeds with the command that users run, ``jaxccomp tune``."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from jaxccomp._runtime import ucx
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
    """Writes the profile of the transport with the faster training step (MPI if UCX is missing).

    Args:
      where: as in `workers.run`.
      path: path of the profile.
      tensors: files with the values on which codecs are measured.
      env: as in `workers.run`.

    Returns:
      The command's report on the two transports.
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
    """Writes the profile of the ranks at ``where`` with ``python -m jaxccomp tune links``.

    Args:
      where: as in `workers.run`.
      path: path of the profile.
      tensors: files with the values on which codecs are measured.
      codecs: specs, separated by spaces.
      env: as in `workers.run`.

    Raises:
      FailedError: the command failed, or had no time to measure a codec; with its output.
    """
    program = ["-P", "-m", "jaxccomp", "tune", "links", "--output", str(path), "--codecs", codecs]
    program += ["--within", str(_WITHIN_SECONDS)]
    for each in tensors:
        program += ["--tensors", each]
    said = workers.output_of(program, where, env=env, timeout_seconds=_WITHIN_SECONDS + 200)
    found = json.loads(path.read_text(encoding="utf-8"))["codecs"]
    if left_out := set(codecs.split()) - set(found):
        raise workers.FailedError(f"the profile has no {', '.join(left_out)}: {said}")

"""Profiles of testbeds, measured as users measure theirs: by the command itself."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from testbed import workers

if TYPE_CHECKING:
    from testbed.bed import Testbed

_WITHIN_SECONDS = 150.0


def profile(
    where: Testbed | int,
    path: pathlib.Path,
    tensors: Iterable[str],
    codecs: str = "lossless",
    operations: str = "",
    env: dict[str, str] | None = None,
) -> None:
    """Writes the profile of the ranks that run there, by ``python -m jaxccomp tune links``.

    Args:
      where: as `workers.run` takes it.
      path: of the profile.
      tensors: files of what codecs are measured on.
      codecs: specs, separated by spaces.
      operations: what is timed with each algorithm: names, separated by spaces, or "all".
      env: as `workers.run` takes it.

    Raises:
      FailedError: with the command's output, when it failed, or had no time for a codec.
    """
    program = ["-P", "-m", "jaxccomp", "tune", "links", "--output", str(path), "--codecs", codecs]
    program += ["--within", str(_WITHIN_SECONDS), "--operations", operations]
    for each in tensors:
        program += ["--tensors", each]
    said = workers.output_of(program, where, env=env, timeout_seconds=_WITHIN_SECONDS + 200)
    found = json.loads(path.read_text(encoding="utf-8"))["codecs"]
    if left_out := set(codecs.split()) - set(found):
        raise workers.FailedError(f"the profile has no {', '.join(left_out)}: {said}")

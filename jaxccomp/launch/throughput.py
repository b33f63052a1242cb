"""The line by which a program reports its throughput to ``python -m jaxccomp tune``."""

from __future__ import annotations

import math
import re

from jaxccomp import errors

_LINE = re.compile(r"jaxccomp-throughput: (\S+) samples/s")


def report_throughput(samples_per_second: float) -> None:
    """Report this rank's samples per second to ``python -m jaxccomp tune``.

    Every rank calls it once, with its own samples; the sum is the job's throughput. The last of
    several calls counts. It prints one line, which any program may print itself::

        jaxccomp-throughput: 1234.5 samples/s

    Measure after compilation, and wait for the last result (``jax.block_until_ready``) before
    reading the clock.

    Args:
      samples_per_second: this rank's samples per second; with replicas (``vmap``), of all replicas.

    Raises:
      InvalidArgumentError: for a number that is not positive and finite.

    >>> report_throughput(1234.5)
    jaxccomp-throughput: 1234.5 samples/s
    """
    rate = float(samples_per_second)
    if not (math.isfinite(rate) and rate > 0):
        raise errors.InvalidArgumentError(
            f"report_throughput takes a positive number of samples per second, not {rate}."
        )
    print(f"jaxccomp-throughput: {rate} samples/s", flush=True)


def parse(line: str) -> float | None:
    """Return the number in a line of `report_throughput`; None for other lines."""
    match = _LINE.fullmatch(line.strip())
    try:
        rate = float(match[1]) if match else None
    except ValueError:
        return None
    return rate if rate is not None and math.isfinite(rate) and rate > 0 else None

"""Starts programs as MPI ranks, several per GPU if wanted (``python -m jaxccomp run``, ``tune``).

No module here imports JAX, since a rank's start-up code runs before its program.
"""

from jaxccomp.launch.lines import report_throughput

__all__ = ["report_throughput"]

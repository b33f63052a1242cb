"""Starts programs as MPI ranks, several per GPU if wanted (``python -m jaxccomp run``, ``tune``).

Nothing here imports JAX: a rank's start-up runs before its program does.
"""

from jaxccomp.launch.throughput import report_throughput

__all__ = ["report_throughput"]

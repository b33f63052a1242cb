"""Several hosts with slow links on one machine (``python -m jaxccomp.bench.testbed``)."""

from jaxccomp.bench.testbed.bed import Testbed
from jaxccomp.bench.testbed.network import TestbedError

__all__ = ["Testbed", "TestbedError"]

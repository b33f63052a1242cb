"""Several hosts with slow links on one machine (``python -m testbed``)."""

from testbed.bed import Testbed
from testbed.network import TestbedError

__all__ = ["Testbed", "TestbedError"]

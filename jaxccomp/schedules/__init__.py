"""The engine's schedules as data, and what they would take on a described cluster.

`make` gives a rank's tasks before anything runs; `simulate` runs those of all ranks event by event.
A *profile* is a cluster's description that was measured (docs/planner.md).
Nothing here communicates.
"""

from jaxccomp.schedules._make import COLLECTIVES, Schedule, Slot, Task, make
from jaxccomp.schedules._prices import Prediction, algorithms, simulate, simulate_all
from jaxccomp.schedules._profile import write as write_profile

__all__ = [
    "COLLECTIVES",
    "Prediction",
    "Schedule",
    "Slot",
    "Task",
    "algorithms",
    "make",
    "simulate",
    "simulate_all",
    "write_profile",
]

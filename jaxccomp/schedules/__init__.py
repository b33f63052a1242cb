"""The engine's schedules as data, and their predicted times on a described cluster.

`make` returns a rank's tasks; `simulate` runs the tasks of all ranks in an event simulation. A
*profile* is a measured description of a cluster, from which a `Planner` chooses algorithms and
codecs (docs/planner.md). Custom algorithms (`jaxccomp.register_algorithm`) are written with a
`Builder` (docs/extending.md). Nothing here communicates.
"""

from jaxccomp.schedules._builder import Builder
from jaxccomp.schedules._candidates import Choice, Option
from jaxccomp.schedules._cluster import Cluster, cluster_of
from jaxccomp.schedules._cluster import parse as parse_profile
from jaxccomp.schedules._cluster import read as read_profile
from jaxccomp.schedules._cluster import write as write_profile
from jaxccomp.schedules._custom import check
from jaxccomp.schedules._make import COLLECTIVES, Schedule, Slot, Task, make
from jaxccomp.schedules._planner import Planner
from jaxccomp.schedules._prices import (
    Prediction,
    algorithms,
    simulate,
    simulate_all,
    static_rule,
    with_chunk,
)

__all__ = [
    "COLLECTIVES",
    "Builder",
    "Choice",
    "Cluster",
    "Option",
    "Planner",
    "Prediction",
    "Schedule",
    "Slot",
    "Task",
    "algorithms",
    "check",
    "cluster_of",
    "make",
    "parse_profile",
    "read_profile",
    "simulate",
    "simulate_all",
    "static_rule",
    "with_chunk",
    "write_profile",
]

"""Timelines: when each task of the engine's schedules ran, in this process and on all ranks.

>>> with jaxccomp.trace.record() as timeline:                          # doctest: +SKIP
...     step(x).block_until_ready()
>>> print(timeline)  # how busy wire and codecs were                   # doctest: +SKIP
>>> timeline.save(f"trace-{timeline.origin.rank}.json")  # for ui.perfetto.dev  # doctest: +SKIP

``python -m jaxccomp trace merge all.json trace-*.json`` merges the traces of all ranks.
"""

from jaxccomp.trace._merge import ClockOffset, Merged, merge
from jaxccomp.trace._timeline import KINDS, Origin, Task, Timeline, record

__all__ = [
    "KINDS",
    "ClockOffset",
    "Merged",
    "Origin",
    "Task",
    "Timeline",
    "merge",
    "record",
]

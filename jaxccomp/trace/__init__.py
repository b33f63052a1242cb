"""Timelines and the flight recorder: what the engine's operations did, on this rank and on all.

`record` shows when each task of the engine's schedules ran:

>>> with jaxccomp.trace.record() as timeline:                          # doctest: +SKIP
...     step(x).block_until_ready()
>>> print(timeline)  # how busy wire and codecs were                   # doctest: +SKIP
>>> timeline.save(f"trace-{timeline.origin.rank}.json")  # for ui.perfetto.dev  # doctest: +SKIP

``python -m jaxccomp trace merge all.json trace-*.json`` merges the traces of all ranks.

`flight` returns the last operations of this rank. With the option ``flight_folder``, ranks write
them to files, from which ``python -m jaxccomp flight`` says which rank waits for which.
"""

from jaxccomp.trace._flight import Flight, FlightOperation, flight
from jaxccomp.trace._merge import ClockOffset, Merged, merge
from jaxccomp.trace._timeline import KINDS, Origin, Task, Timeline, record

__all__ = [
    "KINDS",
    "ClockOffset",
    "Flight",
    "FlightOperation",
    "Merged",
    "Origin",
    "Task",
    "Timeline",
    "flight",
    "merge",
    "record",
]

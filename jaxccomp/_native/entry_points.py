"""What other packages add: modules that their entry points name, imported when a name is unknown.

A package names modules that register schedules, codecs or backends, in its metadata::

    [project.entry-points."jaxccomp.schedules"]
    anything = "its.module"

Nothing is imported before a name is looked up that this process does not know. An import that fails
is told where that name is refused, and in ``python -m jaxccomp doctor``; it stops nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from importlib import metadata

GROUPS = ("jaxccomp.schedules", "jaxccomp.codecs", "jaxccomp.backends")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """An entry point, once its module has been imported.

    Attributes:
      name: as its package calls it.
      value: the module.
      package: and its version.
      error: why the import failed; empty when it did not.
    """

    name: str
    value: str
    package: str
    error: str


_outcomes: dict[metadata.EntryPoint, Loaded] = {}
_here = threading.local()


def load(group: str) -> tuple[Loaded, ...]:
    """Imports the modules of a group that have not been imported yet."""
    # No lock is held: a module that another thread imports may look names up itself.
    under_way = _here.__dict__.setdefault("under_way", set())
    for point in _points(group):
        if point in _outcomes or point in under_way:
            continue
        under_way.add(point)
        try:
            _outcomes[point] = _load(point)
        finally:
            under_way.discard(point)
    return tuple(_outcomes[point] for point in _points(group) if point in _outcomes)


def failures(group: str) -> str:
    """A sentence for each import of a group that failed; empty where there is none."""
    return " ".join(
        f"The package {each.package} could not be asked: its entry point {each.name!r} in "
        f"{group!r} failed with {each.error}."
        for each in load(group)
        if each.error
    )


@functools.cache
def _points(group: str) -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))


def _load(point: metadata.EntryPoint) -> Loaded:
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "(unknown)"
    error = ""
    try:
        point.load()
    except Exception as raised:  # a package of somebody else's, which may raise anything
        error = f"{type(raised).__name__}: {raised}"
    return Loaded(point.name, point.value, package, error)

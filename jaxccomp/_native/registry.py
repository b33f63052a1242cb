"""The registry of codecs, algorithms and backends that programs and other packages add.

A package lists its registering modules in its metadata::

    [project.entry-points."jaxccomp.algorithms"]
    anything = "its.module"

The first lookup of an unregistered name imports these modules. The error for an unknown name shows
import errors, as does ``python -m jaxccomp doctor``. Other names stay usable.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from typing import Generic, Protocol, TypeVar

import jax

from jaxccomp import errors

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Entry(Protocol):
    """A registered codec, algorithm or backend."""

    @property
    def name(self) -> str:
        """The name that operations take."""
        ...

    @property
    def source(self) -> str:
        """The place of its definition. An entry of the same name and source replaces this one."""
        ...


E = TypeVar("E", bound=Entry)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """An entry point, once its module has been imported.

    Attributes:
      group: "jaxccomp.codecs", for instance.
      name: the entry point's name.
      value: the module.
      package: the package's name and version.
      error: why the import failed; empty if it did not.
    """

    group: str
    name: str
    value: str
    package: str
    error: str


class Registry(Generic[E]):
    """The names of one kind.

    Args:
      kind: "codec", for instance; the group of entry points is "jaxccomp.codecs".
      own: this package's names in a scope. The scope of an algorithm is its collective; other kinds
        have the scope "".
    """

    all: list[Registry] = []

    def __init__(self, kind: str, own: Callable[[str], Iterable[str]]):
        self.group = f"jaxccomp.{kind}s"
        self._kind, self._own = kind, own
        self._entries: dict[tuple[str, str], E] = {}
        self._outcomes: dict[metadata.EntryPoint, Loaded] = {}
        self._here = threading.local()
        Registry.all.append(self)

    def add(self, entry: E, scope: str = "") -> None:
        """Registers an entry. It replaces an entry of the same name and source.

        Raises:
          NameTakenError: if another entry has the name, or the name is not of a-z, 0-9 and _.
        """
        name, before = entry.name, self._entries.get((scope, entry.name))
        if not _NAME.fullmatch(name):
            why = "a name is of a-z, 0-9 and _"
        elif name in self._own(scope):
            why = "this package has one of that name"
        elif before is not None and before.source != entry.source:
            why = f"{before.source} has registered one of that name"
        else:
            self._entries[scope, name] = entry
            if before is not None:
                jax.clear_caches()  # programs compiled with the replaced entry
            return
        raise errors.NameTakenError(
            f"{self._described(scope)} {name!r}: {why}; {entry.source} must take another."
        )

    def find(self, name: str, scope: str = "") -> E | None:
        """The entry of that name; None for this package's own names and for unknown names."""
        found = self._entries.get((scope, name))
        if found is None and name not in self._own(scope):
            self.load()
            found = self._entries.get((scope, name))
        return found

    def registered(self, scope: str = "") -> Mapping[str, E]:
        """The entries by name. Entries of packages are missing until `load` has imported them."""
        return {name: each for (where, name), each in self._entries.items() if where == scope}

    def unknown(self, given: str, scope: str = "", hint: str = "") -> errors.UnknownNameError:
        """The error for an unknown name, which lists the valid ones."""
        failed = [
            f"The names of the package {each.package} are unknown: its entry point {each.name!r} "
            f"in {each.group!r} failed with {each.error}."
            for each in self.load()
            if each.error
        ]
        valid = (*self._own(scope), *self.registered(scope))
        kind = self._described(scope) + (":" if scope else "")
        return errors.unknown(kind, given, valid, " ".join(filter(None, (hint, *failed))))

    def load(self) -> tuple[Loaded, ...]:
        """Imports the modules of packages that have not been imported yet."""
        # Hold no lock: a module may look up names while another thread imports it, and would wait
        # for the lock. `under_way` (by thread) ends the recursion of a module that looks up names.
        under_way = self._here.__dict__.setdefault("under_way", set())
        points = _points(self.group)
        for point in points:
            if point in self._outcomes or point in under_way:
                continue
            under_way.add(point)
            try:
                self._outcomes[point] = _load(point)
            finally:
                under_way.discard(point)
        return tuple(self._outcomes[point] for point in points if point in self._outcomes)

    def _described(self, scope: str) -> str:
        return f"{self._kind} of {scope}" if scope else self._kind


def loaded() -> Iterator[Loaded]:
    """Imports the modules of all packages, of all kinds."""
    for each in Registry.all:
        yield from each.load()


@functools.cache
def _points(group: str) -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))


def _load(point: metadata.EntryPoint) -> Loaded:
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "(unknown)"
    error = ""
    try:
        point.load()
    except Exception as raised:  # third-party code may raise anything
        error = f"{type(raised).__name__}: {raised}"
    return Loaded(point.group, point.name, point.value, package, error)

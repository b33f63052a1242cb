"""The names of algorithms: the engine's own, and registered ones.

A registered algorithm makes schedules for a call's sizes when the call is lowered. The engine
stores them under a key, which then replaces the algorithm's name.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from jaxccomp import errors
from jaxccomp._native import engine
from jaxccomp._native.registry import Registry


@dataclasses.dataclass(frozen=True)
class Problem:
    """The parameters of a schedule.

    Attributes:
      ranks: the number of ranks.
      block_bytes: size of each block.
      root: root of a rooted collective, else 0.
      chunk_bytes: size of a chunk; None for the option ``chunk_bytes``.
      encoded: whether a codec encodes any of the values.
      feedback: whether residuals (compression errors) are results.
      reverse: whether a scan begins at the last rank.
    """

    ranks: int
    block_bytes: int
    root: int = 0
    chunk_bytes: int | None = None
    encoded: bool = False
    feedback: bool = False
    reverse: bool = False


@dataclasses.dataclass(frozen=True)
class CustomAlgorithm:
    """A registered algorithm.

    Attributes:
      collective: its collective.
      name: its name, without options.
      description: one line.
      source: where it is defined; the same name from another source is an error.
      check: raises if the options of a text such as "my_chain:chunk=65536" are wrong.
      key: makes and checks the schedules of a text and a problem; returns the engine's key.
    """

    collective: str
    name: str
    description: str
    source: str
    check: Callable[[str], object]
    key: Callable[[str, Problem], str]


def own_names(collective: str) -> tuple[str, ...]:
    """The names of the engine's algorithms; none without the engine."""
    return _own_names(collective) if engine.available() else ()


@functools.cache
def _own_names(collective: str) -> tuple[str, ...]:
    table = engine.load().describe()["algorithms"]
    return tuple(row["name"] for row in table if row["collective"] == collective)


ALGORITHMS: Registry[CustomAlgorithm] = Registry(
    "algorithm", lambda collective: ("auto", *own_names(collective))
)


def names(collective: str) -> tuple[str, ...]:
    """The names of the engine's algorithms, then of the registered ones."""
    ALGORITHMS.load()
    return own_names(collective) + tuple(ALGORITHMS.registered(collective))


@functools.cache
def _sending_partial() -> frozenset[tuple[str, str]]:
    table = engine.load().describe()["algorithms"]
    return frozenset((row["collective"], row["name"]) for row in table if row["sends_partial"])


def sends_partial(collective: str, algorithm: str) -> bool:
    """Whether ranks send partial reductions, which the receivers reduce further.

    True for registered algorithms, because they may do so.

    Args:
      collective: the algorithm's collective.
      algorithm: its name, with or without options; not "auto".
    """
    name = algorithm.partition(":")[0]
    return (collective, name) in _sending_partial() or name not in own_names(collective)


def find(collective: str, algorithm: str) -> CustomAlgorithm | None:
    """The registered algorithm of that name (options are ignored); None if there is none."""
    return ALGORITHMS.find(algorithm.partition(":")[0], collective)


def has(collective: str, algorithm: str) -> bool:
    """Whether a collective has an algorithm with such options."""
    try:
        check(collective, algorithm)
    except errors.InvalidArgumentError:
        return False
    return True


def check(collective: str, algorithm: str) -> None:
    """Checks that a collective has an algorithm with such options.

    Raises:
      UnknownNameError: for an unknown name; lists packages whose import failed.
      InvalidArgumentError: for wrong options.
    """
    if algorithm == "auto":
        return
    registered = find(collective, algorithm)
    name = algorithm.partition(":")[0]
    if registered is not None:
        registered.check(algorithm)
    elif name not in ("auto", *own_names(collective)):
        raise ALGORITHMS.unknown(algorithm, collective)
    else:
        try:
            engine.load().check_algorithm(collective, algorithm)
        except ValueError as error:
            raise errors.InvalidArgumentError(f"{collective}: {error}") from None


def for_engine(collective: str, algorithm: str, problem: Problem) -> str:
    """The engine's name of an algorithm: for a registered one, the key of its schedules.

    Raises:
      ScheduleError: if the schedules are wrong.
    """
    registered = find(collective, algorithm)
    return algorithm if registered is None else registered.key(algorithm, problem)

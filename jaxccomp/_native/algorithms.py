"""The names of algorithms: the engine's own, and those that programs register.

Those of programs make schedules for the sizes of a call where it is lowered. The engine keeps these
under a key, which then stands in the place of the name.
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
    """What schedules are made for.

    Attributes:
      ranks: how many take part.
      block_bytes: size of each block.
      root: of rooted collectives, else 0.
      chunk_bytes: None: the option of that name.
      coded: whether a codec codes any of the values.
      feedback: whether the compression errors are results.
      reverse: of a scan, whether it begins at the last rank.
    """

    ranks: int
    block_bytes: int
    root: int = 0
    chunk_bytes: int | None = None
    coded: bool = False
    feedback: bool = False
    reverse: bool = False


@dataclasses.dataclass(frozen=True)
class CustomAlgorithm:
    """An algorithm that a program has registered.

    Attributes:
      collective: which it is one of.
      name: what programs call it, without options.
      description: one line.
      source: where it is written: one of the same name from elsewhere is another one.
      check: raises where the options of a text such as "my_chain:chunk=65536" are wrong.
      key: of a text and a problem, the engine's key for schedules that are checked and kept.
    """

    collective: str
    name: str
    description: str
    source: str
    check: Callable[[str], None]
    key: Callable[[str, Problem], str]


def own_names(collective: str) -> tuple[str, ...]:
    """The engine's own; none where there is no engine."""
    return _own_names(collective) if engine.available() else ()


@functools.cache
def _own_names(collective: str) -> tuple[str, ...]:
    table = engine.load().describe()["algorithms"]
    return tuple(row["name"] for row in table if row["collective"] == collective)


ALGORITHMS: Registry[CustomAlgorithm] = Registry(
    "algorithm", lambda collective: ("auto", *own_names(collective))
)


def names(collective: str) -> tuple[str, ...]:
    """The engine's own, then those of programs and of other packages."""
    ALGORITHMS.load()
    return own_names(collective) + tuple(ALGORITHMS.registered(collective))


@functools.cache
def _sending_partial() -> frozenset[tuple[str, str]]:
    table = engine.load().describe()["algorithms"]
    return frozenset((row["collective"], row["name"]) for row in table if row["sends_partial"])


def sends_partial(collective: str, algorithm: str) -> bool:
    """Whether ranks send reductions of some ranks' values, which others reduce further.

    Those that programs register may do so.

    Args:
      collective: whose algorithm.
      algorithm: its name, maybe with options; not "auto".
    """
    name = algorithm.partition(":")[0]
    return (collective, name) in _sending_partial() or name not in own_names(collective)


def find(collective: str, algorithm: str) -> CustomAlgorithm | None:
    """The registered one that a text names; None where it names another one, or none."""
    return ALGORITHMS.find(algorithm.partition(":")[0], collective)


def has(collective: str, algorithm: str) -> bool:
    """Whether an algorithm, with the options that it is given, is one of that collective."""
    try:
        check(collective, algorithm)
    except errors.InvalidArgumentError:
        return False
    return True


def check(collective: str, algorithm: str) -> None:
    """Raises unless an algorithm, with the options that it is given, is one of that collective.

    Raises:
      UnknownNameError: where there is none of that name; with what other packages lack.
      InvalidArgumentError: where its options are wrong.
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
    """An algorithm as the engine takes it: for one that is registered, the key of its schedules.

    Raises:
      ScheduleError: where the schedules are wrong.
    """
    registered = find(collective, algorithm)
    return algorithm if registered is None else registered.key(algorithm, problem)

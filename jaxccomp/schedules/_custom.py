"""`jaxccomp.register_algorithm`: custom algorithms, checked before anything is sent."""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from jaxccomp import config, errors
from jaxccomp._native import algorithms, engine
from jaxccomp._native.algorithms import CustomAlgorithm, Problem
from jaxccomp.schedules._builder import Builder
from jaxccomp.schedules._make import COLLECTIVES

F = TypeVar("F", bound=Callable[..., None])
Value = bool | int | float

_ALIGN = 64
_MAX_CHUNK = 1 << 40
_ROOTED = ("bcast", "reduce", "gather", "scatter")
# (bytes of a block, bytes of a chunk): an empty block, a block below the alignment of ranges, a
# part of a chunk, and several chunks.
_SIZES = ((0, 64), (4, 64), (1000, 4096), (20_000, 4096), (100_032, 8192))


def register_algorithm(name: str, collective: str, /, **options: Value) -> Callable[[F], F]:
    """Registers a function as an algorithm of a collective, selected by ``algorithm=name``.

    The function defines the tasks of one rank. It gets a `jaxccomp.schedules.Builder`, which has
    the rank, the number of ranks and the sizes, and adds tasks by its methods: send, recv, copy,
    merge, and with a codec encode and decode. Lowering a program that names the algorithm calls it
    for all ranks: once for each size, number of ranks, root and set of options. The engine then
    runs its tasks without Python.

    It must be pure (the same arguments give the same tasks on all ranks), since each rank makes the
    tasks of all ranks. Before anything is sent

    * symbolic execution checks the tasks of all ranks, as it checks this package's algorithms:
      results are correct, no two unordered tasks access one range, both ends of each message exist
      and are in one lane, the tasks cannot deadlock, even if memory is short, and temporary memory
      stays within its limit (4 chunks for each peer of a rank);
    * ranks compare a hash of the tasks: if they have registered different functions under one name,
      an error shows both.

    On the wire: the messages of the tasks; with a codec, the codes that the function sends. Calls
    between processes and along an axis may use it; shapes must be known at lowering.

    Args:
      name: the value for ``algorithm=``; characters a to z, 0 to 9 and ``_``.
      collective: one of `jaxccomp.schedules.COLLECTIVES`.
      **options: options that may follow a colon, with their defaults: numbers and bools, which the
        function gets as keyword arguments. Every algorithm has the option ``chunk``: the bytes of a
        chunk, `Builder.chunk_bytes`.

    Raises:
      NameTakenError: if the name is taken or not valid.
      ScheduleError: for a function that does not take its options, or an option that is neither
        number nor bool; from operations, if the schedule is wrong, with the rank, the task and the
        reason. Defining a function again, as in a notebook, replaces the previous function and
        discards programs compiled with it.
      UnknownNameError: for an unknown collective.

    Example:
      >>> @jaxccomp.register_algorithm("line", "bcast")
      ... def line(b):
      ...     '''Chunks down a line of ranks.'''
      ...     place = (b.rank - b.root) % b.ranks
      ...     for chunk in b.lanes(b.output()):
      ...         if place == 0:
      ...             values, ready = b.pack(b.input(chunk))
      ...         else:
      ...             values = b.receive_buffer(chunk)
      ...             ready = [b.recv((b.rank - 1) % b.ranks, b.lane, values)]
      ...         if place + 1 < b.ranks:
      ...             b.send((b.rank + 1) % b.ranks, b.lane, values, ready)
      ...         b.unpack(chunk, values, ready)
      >>> jaxccomp.schedules.check("bcast", "line") > 100
      True
    """
    if collective not in COLLECTIVES:
        raise errors.unknown("collective with blocks of one size:", collective, COLLECTIVES)
    for key, value in options.items():
        if not isinstance(value, (bool, int, float)) or key == "chunk":
            raise errors.ScheduleError(
                f"algorithm {name!r}: option {key}={value!r} must have a number or a bool as its "
                "default, and another name than chunk, which all algorithms have."
            )

    def register(function: F) -> F:
        source = f"{function.__module__}.{function.__qualname__}"
        try:
            inspect.signature(function).bind(None, **options)
        except TypeError as error:
            raise errors.ScheduleError(
                f"algorithm {name!r}: {source} is called with a builder and the options "
                f"{errors.listed(options)}, and does not take them: {error}."
            ) from None
        maker = _Maker(collective, name, function, options)
        described = (inspect.getdoc(function) or source).splitlines()[0]
        algorithms.ALGORITHMS.add(
            CustomAlgorithm(collective, name, described, source, maker.options, maker.key),
            collective,
        )
        return function

    return register


def check(
    collective: str,
    algorithm: str,
    *,
    ranks: Iterable[int] = range(1, 9),
    sizes: Iterable[tuple[int, int]] = _SIZES,
) -> int:
    """Checks a registered algorithm for many numbers of ranks and sizes, raw and with a codec.

    A program's own sizes are also checked when it is lowered. Nothing is sent.

    Args:
      collective: the collective.
      algorithm: the algorithm's name, with options that differ from their defaults.
      ranks: the numbers of ranks.
      sizes: pairs of bytes of a block and of a chunk; a ``chunk`` in ``algorithm`` overrides the
        latter.

    Returns:
      The number of checked problems (each with the schedules of all ranks).

    Raises:
      ScheduleError: for the first wrong schedule, with the rank, the task and the reason.
      UnknownNameError: if no such algorithm is registered.
      EngineUnavailableError: without the native engine.

    Example:
      >>> jaxccomp.schedules.check("bcast", "chian")
      Traceback (most recent call last):
      jaxccomp.errors.UnknownNameError: unknown algorithm of bcast: 'chian'; valid: ...
    """
    algorithms.check(collective, algorithm)
    registered = algorithms.find(collective, algorithm)
    if registered is None:
        raise errors.InvalidArgumentError(
            f"{collective} {algorithm!r} is one of this package's own algorithms, which its tests "
            "check; name one that is registered."
        )
    tried = 0
    for problem in _problems(collective, tuple(ranks), tuple(sizes)):
        registered.key(algorithm, problem)
        tried += 1
    return tried


def _problems(
    collective: str, ranks: tuple[int, ...], sizes: tuple[tuple[int, int], ...]
) -> Iterable[Problem]:
    feedback = (False, True) if collective in ("allreduce", "reduce_scatter") else (False,)
    reverse = (False, True) if collective in ("scan", "exscan") else (False,)
    kinds = [(codec, lost) for codec in (False, True) for lost in feedback if codec or not lost]
    for count in ranks:
        roots = {0, count // 2, count - 1} if collective in _ROOTED else {0}
        for block, chunk in sizes:
            for root in sorted(roots):
                for has_codec, lost in kinds:
                    for backwards in reverse:
                        yield Problem(count, block, root, chunk, has_codec, lost, backwards)


class _Maker:
    """Makes and checks the schedules of one algorithm, and caches their keys."""

    def __init__(
        self,
        collective: str,
        name: str,
        function: Callable[..., None],
        options: Mapping[str, Value],
    ):
        self._collective, self._name = collective, name
        self._function, self._options = function, options
        self._keys: dict[tuple[str, Problem], str] = {}
        self._lock = threading.Lock()

    def options(self, text: str) -> dict[str, Value]:
        """Returns the function's keyword arguments, and ``chunk`` if it is given."""
        values = dict(self._options)
        _, colon, given = text.partition(":")
        if colon and not given:
            raise self._wrong(text, "an option must follow the colon, such as chunk=131072")
        for each in given.split(",") if given else ():
            key, _, value = each.partition("=")
            if key == "chunk":
                if not value.isdecimal() or not _ALIGN <= int(value) <= _MAX_CHUNK:
                    raise self._wrong(
                        text, f"chunk is a number of bytes from {_ALIGN}, not {value!r}"
                    )
                values[key] = int(value) // _ALIGN * _ALIGN
            elif key in self._options:
                values[key] = self._value(text, key, value)
            else:
                known = errors.listed(("chunk", *self._options))
                raise self._wrong(text, f"there is no option {key!r}; it has {known}")
        return values

    def _value(self, text: str, key: str, value: str) -> Value:
        kind = type(self._options[key])
        try:
            return {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise self._wrong(
                text, f"{key}={value} must be of type {kind.__name__}, such as {self._options[key]}"
            ) from None

    def _wrong(self, text: str, what: str) -> errors.InvalidArgumentError:
        return errors.InvalidArgumentError(f"{self._collective}: algorithm {text!r}: {what}.")

    def key(self, text: str, problem: Problem) -> str:
        """Returns the engine's key for the checked schedules of all ranks."""
        options = self.options(text)
        chunk = options.pop("chunk", None) or problem.chunk_bytes or config.get("chunk_bytes")
        problem = Problem(
            int(problem.ranks),
            int(problem.block_bytes),
            int(problem.root) if self._collective in _ROOTED else 0,
            max(int(chunk) // _ALIGN, 1) * _ALIGN,
            bool(problem.encoded),
            bool(problem.feedback),
            bool(problem.reverse),
        )
        with self._lock:
            known = self._keys.get((text, problem))
        if known is None:
            known = self._made(text, problem, options)
            with self._lock:
                self._keys[text, problem] = known
        return known

    def _made(self, text: str, problem: Problem, options: Mapping[str, Value]) -> str:
        by_rank = [self._rows(rank, problem, options) for rank in range(problem.ranks)]
        digest = hashlib.blake2b(repr((problem, by_rank)).encode(), digest_size=8).hexdigest()
        key = f"{text}#{digest}"
        try:
            engine.load().register_schedules(
                self._collective,
                self._name,
                key,
                problem.root,
                problem.block_bytes,
                problem.chunk_bytes,
                problem.encoded,
                problem.feedback,
                problem.reverse,
                by_rank,
            )
        except ValueError as error:
            raise errors.ScheduleError(
                f"{self._collective} {text!r} is wrong for {_described(problem)}: {error}."
            ) from None
        return key

    def _rows(self, rank: int, problem: Problem, options: Mapping[str, Value]) -> Any:
        builder = Builder(rank, problem)
        try:
            self._function(builder, **options)
        except errors.ScheduleError as error:
            raise errors.ScheduleError(
                f"{self._collective} {self._name!r} is wrong for {_described(problem)}: rank "
                f"{rank}: {error}"
            ) from error
        except Exception as error:
            error.add_note(
                f"in schedule {self._name!r} of {self._collective}, for rank {rank} of "
                f"{_described(problem)}"
            )
            raise
        return builder.rows()


def _described(problem: Problem) -> str:
    return (
        f"{problem.ranks} ranks, root {problem.root}, blocks of {problem.block_bytes} bytes, "
        f"chunks of {problem.chunk_bytes}{', encoded' if problem.encoded else ''}"
        f"{', with feedback' if problem.feedback else ''}{', reversed' if problem.reverse else ''}"
    )

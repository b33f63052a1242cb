"""A function of a random program: tracing, calls, and comparison with its definition."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from contract import data
from jax.experimental import io_callback

from stress.program_cases import CONTEXTS, SIMPLE, Case, Collective, Function, operands
from stress.program_rows import ROWS, laid_out, start

Array = Any
BATCH = 3


@dataclasses.dataclass
class Outcome:
    """Counts of launches and values, and one text for each wrong result."""

    launches: int = 0
    values: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)


class Prepared:
    """A function of a program on these ranks: traced, called and checked.

    Attributes:
      launch: the function; call it with the result of `inputs`.
    """

    def __init__(
        self, field: Any, case: Case, function: Function, alter: Any = None, number: int = 0
    ):
        """`alter` changes this rank's operands in the program; `number` is part of its name."""
        self.field, self.case, self.function = field, case, function
        self._name = "program" if case.manner == "threads with equal names" else f"program{number}"
        self._positions = sum(map(len, field.groups(function.place, "all")))
        first = self._operands(function, 0)
        self._scalars = [[x[0].ndim == 0 for x in arrays] for arrays in first]
        self.program = self._program(alter)
        make = field.eager if case.manner == "op by op" else None
        self.launch = (
            make(function.place, self.program)
            if make
            else field.compiled(function.place, self.program, function.donated)
        )

    def fresh(self) -> Callable[..., Any]:
        """Returns the same function, to be traced and compiled again."""
        return self.field.compiled(self.function.place, self._program(None), self.function.donated)

    # --- the program -----------------------------------------------------------------------------

    def _program(self, alter: Any) -> Callable[..., Any]:
        function, field = self.function, self.field

        def program(inputs: Any, flag: Array) -> Any:
            results: list[Any] = []
            rows = zip(function.collectives, inputs["operands"], self._scalars, strict=True)
            for number, (collective, arrays, scalars) in enumerate(rows):
                arrays = [field.unboxed(x, s) for x, s in zip(arrays, scalars, strict=True)]
                if alter is not None:
                    arrays = [alter(number, inputs["number"], x) for x in arrays]
                results.append(_applied(field, function, collective, arrays, results, flag))
            tick = _beside(function.beside, jnp.reshape(inputs["number"], ()), self.case.slow)
            out = {"results": results, "number": tick + jnp.sum(inputs["batch"], dtype=tick.dtype)}
            return jax.tree.map(field.boxed, out)

        program.__name__ = self._name
        return program

    # --- operands --------------------------------------------------------------------------------

    def inputs(self, launch: int) -> tuple[Any, Array]:
        function, field, case = self._function(launch), self.field, self.case
        spread = lambda values: field.spread(function.place, values, function.donated)  # noqa: E731
        longer = case.uneven and launch % 2 == 1 and field.rank == case.chosen
        batch = np.zeros(2 * BATCH if longer else BATCH, np.int32)
        values = {
            "operands": [[spread(x) for x in each] for each in self._operands(function, launch)],
            "number": spread([np.int32(launch)] * self._positions),
            "batch": spread([batch] * self._positions),
        }
        return values, field.flag()

    def _function(self, launch: int) -> Function:
        """Returns the function, with larger operands in the last launch of an other_batch case."""
        if not (self.case.other_batch and launch == self.case.launches - 1):
            return self.function
        longer = tuple(
            dataclasses.replace(c, trailing=(*c.trailing[:-1], c.trailing[-1] + 1))
            if c.trailing
            else c
            for c in self.function.collectives
        )
        return dataclasses.replace(self.function, collectives=longer)

    def _operands(self, function: Function, launch: int) -> list[list[list[np.ndarray]]]:
        """Returns the operands by collective, operand and position."""
        found = []
        for collective in function.collectives:
            if isinstance(collective.operand, int):
                found.append([])
                continue
            groups = self.field.groups(function.place, collective.team)
            with laid_out(collective.layout):
                each = [operands(collective, len(g), i, launch) for i, g in enumerate(groups)]
            found.append([_by_position(groups, arrays) for arrays in zip(*each, strict=True)])
        return found

    # --- results ---------------------------------------------------------------------------------

    def check(self, launch: int, result: Any, outcome: Outcome) -> None:
        function = self._function(launch)
        outcome.launches += 1
        results: list[list[Any]] = []
        for collective, given in zip(
            function.collectives, self._operands(function, launch), strict=True
        ):
            if isinstance(collective.operand, int):
                given = [results[collective.operand]]
            groups = self.field.groups(function.place, collective.team)
            results.append(_expected(collective, groups, given))
        for i, collective in enumerate(function.collectives):
            self._compare(launch, result["results"][i], results[i], collective, outcome)
        ticks = self.field.rows(function.place, result["number"])
        if any(int(tick.reshape(())) != launch for tick in ticks):
            outcome.wrong.append(f"launch {launch}: its number came back as {ticks}")

    def _compare(
        self, launch: int, got: Any, right: list[Any], collective: Collective, outcome: Outcome
    ) -> None:
        derives = collective.context not in SIMPLE and CONTEXTS[collective.context].derives
        bits = ROWS[collective.row].moves and not derives
        rows = [self.field.rows(self.function.place, leaf) for leaf in jax.tree.leaves(got)]
        for at, position in enumerate(self.field.seen[: self._positions]):
            wanted = jax.tree.leaves(right[position])
            try:
                for each, want in zip(rows, wanted, strict=True):
                    # Along an axis, scalars are arrays of one element.
                    own = each[at].reshape(()) if want.ndim == 0 else each[at]
                    outcome.values += own.size
                    data.assert_same(own, want, bits=bits)
            except AssertionError as error:
                text = " ".join(str(error).split())[:400]
                outcome.wrong.append(f"launch {launch}, position {position}, {collective}: {text}")


def _by_position(groups: list[list[int]], blocks: Any) -> list[Any]:
    """Converts values of groups, stacked by rank, to one value for each position."""
    found: dict[int, Any] = {}
    for group, block in zip(groups, blocks, strict=True):
        for rank, position in enumerate(group):
            found[position] = jax.tree.map(lambda x, rank=rank: np.asarray(x)[rank], block)
    return [found[position] for position in sorted(found)]


def _expected(collective: Collective, groups: list[list[int]], given: list[Any]) -> list[Any]:
    row = collective.operation
    F, T = row.expected, row.transposed
    blocks = []
    with laid_out(collective.layout):
        for group in groups:
            stacked = [np.stack([values[p] for p in group]) for values in given]
            if collective.context in SIMPLE:
                once = F(stacked[0])
                blocks.append(once if collective.context == "jit" else (once, once))
            else:
                blocks.append(CONTEXTS[collective.context].expected(F, T, *stacked))
    return _by_position(groups, blocks)


def _applied(
    field: Any, function: Function, collective: Collective, arrays: Any, results: Any, flag: Array
) -> Any:
    place = field.caller(function.place, collective.parent, collective.team)
    options: dict[str, Any] = dict(collective.options)
    place.how = place.how | options
    row = collective.operation

    def call(x: Array) -> Array:
        with laid_out(collective.layout):
            return row.call(place, x)

    if isinstance(collective.operand, int):
        return call(results[collective.operand])
    x = arrays[0]
    if collective.operand == "temporary":
        x = jnp.where(flag, x, jnp.zeros_like(x))
    elif collective.operand == "callback":
        x = jax.pure_callback(np.copy, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    if collective.context == "jit":
        return call(x)
    if collective.context == "twice":
        inner = jax.jit(call)
        return inner(x), inner(x)
    if collective.context == "handles":
        with laid_out(collective.layout):
            first, second = (start(row.call, place, x) for _ in range(2))
            last = second(None)
            return first(flag), last
    return CONTEXTS[collective.context].program(call, x, *arrays[1:], flag)


def _beside(kind: str, number: Array, slow: bool) -> Array:
    """Returns the number of the launch, passed through a callback of this kind."""

    def same(number: Array) -> np.ndarray:
        if slow:
            time.sleep(0.002)
        return np.asarray(number)

    shape = jax.ShapeDtypeStruct((), number.dtype)
    if kind == "pure":
        return jax.pure_callback(same, shape, number)
    if kind == "io":
        return io_callback(same, shape, number)
    if kind == "debug":
        jax.debug.callback(lambda number: None, number)
    return number

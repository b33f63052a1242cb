"""The data that describes a random program, and the operands of its collectives."""

from __future__ import annotations

import dataclasses

import numpy as np
from contract import TRANSFORMS, Operation, data

from stress import program_rows
from stress.program_rows import Layout

CONTEXTS = {row.name: row for row in TRANSFORMS}
# Contexts beside the contract's: directly in the program, in an inner jit called twice, and as two
# handles.
SIMPLE = ("jit", "twice", "handles")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a function.

    Attributes:
      row: name in `program_rows.ROWS`.
      parent, team: the communicator, or group of devices.
      trailing: the dimensions that the row does not fix.
      values: "small" integers, random "bits", or values with "nan".
      context: one of the contract's transforms, or of `SIMPLE`.
      operand: "argument", "temporary", through a "callback", or the index of an earlier result.
      options: codec and algorithm, or backend.
    """

    row: str
    parent: int | str
    team: str
    trailing: tuple[int, ...]
    dtype: str
    values: str
    context: str
    operand: str | int
    options: tuple[tuple[str, str], ...]
    layout: Layout
    seed: int

    @property
    def operation(self) -> Operation:
        return program_rows.shaped(self.row, self.trailing)

    def __str__(self) -> str:
        options = "".join(f", {name}={value}" for name, value in self.options)
        return (
            f"{self.row}({self.dtype}{list(self.trailing)} {self.values} {self.operand}, root "
            f"{self.layout.root}{options}) on {self.parent}/{self.team} in {self.context}"
        )


@dataclasses.dataclass(frozen=True)
class Function:
    """A jitted function: its collectives, a callback beside them, and its options."""

    place: str
    collectives: tuple[Collective, ...]
    beside: str
    donated: bool

    def __str__(self) -> str:
        words = [self.place] * bool(self.place) + ["donated"] * self.donated
        words += [f"{self.beside} callback"] * bool(self.beside)
        return f"{' '.join(words)}[{'; '.join(map(str, self.collectives))}]"


@dataclasses.dataclass(frozen=True)
class Case:
    """A program.

    Attributes:
      launches: the number of launches of each function.
      slow: whether ranks sleep at random.
      other_batch: whether the last launch has operands of another shape.
      uneven: whether one rank compiles again, for a batch of another shape.
      debug_nans: whether JAX looks for NaN in results.
      chosen: the rank for actions of a single rank.
      fault: the kind of fault, or "".
    """

    seed: tuple[int, int]
    manner: str
    functions: tuple[Function, ...]
    launches: int
    slow: bool
    other_batch: bool
    uneven: bool
    debug_nans: bool
    chosen: int
    fault: str = ""

    def __str__(self) -> str:
        flags = ("slow", "other_batch", "uneven", "debug_nans")
        words = [name.replace("_", " ") for name in flags if getattr(self, name)]
        fault = f", fault: {self.fault} on rank {self.chosen}" if self.fault else ""
        return (
            f"{self.seed[0]}:{self.seed[1]}: {self.launches} launches {self.manner} "
            f"({', '.join(words)}){fault}: {' | '.join(map(str, self.functions))}"
        )


def operands(collective: Collective, n: int, group: int, launch: int) -> list[np.ndarray]:
    """Returns the operands of n ranks: x, and d and w for contexts outside `SIMPLE`."""
    row, seed = collective.operation, collective.seed + 101 * group + 10_007 * launch
    if collective.values == "bits":
        return [data.any_bits((n, *row.shape(n)), collective.dtype, seed)]
    x = row.inputs(n, seed, collective.dtype)
    if collective.values == "nan":
        x.reshape(-1)[:: 3 + seed % 4] = np.nan
    if collective.context in SIMPLE:
        return [x]
    d = row.inputs(n, seed + 1, collective.dtype)
    shape = row.expected(x).shape
    w = data.small_integers(shape, collective.dtype, seed + 2, **row.values(n))
    return [x, d, w]

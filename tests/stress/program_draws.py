"""Draws random programs: collectives, teams, and launches.

The seed, a pair of numbers, determines the program. This module does not communicate or compile.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from contract import Operation

from jaxccomp._native import algorithms
from stress import program_rows
from stress.program_cases import CONTEXTS, SIMPLE, Case, Collective, Function
from stress.program_rows import KEEPS_SHAPE, PLAIN, ROWS, Layout

CODECS = (None, "lossless", "zstd", "lz4", "lossless|zstd", "auto")
# Dtypes whose sums and products of small integers are exact in the contract's contexts.
EXACT = ("float32", "float64", "int32", "int64")
DERIVED_FROM = ("float32", "float64")
# The backend other than the engine: jax.lax along an axis, MPI's collectives between processes.
BACKENDS = {"axis": "xla", "process": "mpi"}
CHUNKS = (64, 1000, 4096, 65536)
TEAMS = ("all", "turned", "low half", "every second")
CALLBACKS = ("pure", "io", "debug")
# Relative frequency of each manner.
MANNERS = {
    "process": {
        "in flight": 57,
        "interleaved": 10,
        "threads with own communicators": 6,
        "threads of one communicator": 4,
        "threads with equal names": 2,
        "compiled in another thread": 4,
        "first launched in another thread": 4,
        "ahead of time": 6,
        "op by op": 3,
        "one rank forgets": 2,
        "persistent cache": 2,
        "persistent cache of all ranks": 2,
    },
    "axis": {
        "in flight": 60,
        "interleaved": 10,
        "threads": 10,
        "threads with one function": 6,
        "compiled in another thread": 3,
        "first launched in another thread": 3,
        "ahead of time": 4,
        "op by op": 1,
        "persistent cache": 3,
    },
}
# In the second manner, threads of one communicator compile functions of equal names.
SHARED = ("threads of one communicator", "threads with equal names")
# With such a compilation, JAX loses the tokens of ordered effects in the second call.
AHEAD = ("ahead of time", "compiled in another thread")
OF_SEVERAL = ("interleaved", "threads", "threads with own communicators", *SHARED)


class Draw:
    """The random choices of one program for n ranks or devices."""

    def __init__(self, seed: tuple[int, int], n: int, style: str, mixed: bool = False):
        """`mixed`: whether rows that differ by rank may be combined with other collectives."""
        self.seed, self.n, self.style, self.mixed = seed, n, style, mixed
        self.rng = np.random.default_rng(seed)
        self.names = [name for name, row in ROWS.items() if style in row.styles]

    def pick(self, options: Any, weights: Any = None) -> Any:
        options = list(options)
        if weights is not None:
            weights = np.array(list(weights), float) / sum(weights)
        return options[int(self.rng.choice(len(options), p=weights))]

    def happens(self, percent: float) -> bool:
        return bool(self.rng.random() * 100 < percent)

    def integer(self, low: int, high: int) -> int:
        """Returns a random integer from ``low`` to ``high``, inclusive."""
        return int(self.rng.integers(low, high + 1))

    def case(self) -> Case:
        manners = MANNERS[self.style]
        manner = self.pick(manners, manners.values())
        debug_nans = self.happens(4)
        parts = self.integer(2, 3) if manner in OF_SEVERAL else 1
        count = self.pick(range(1, 9), (26, 24, 18, 12, 8, 5, 4, 3))
        if manner == "op by op":
            count = min(count, 2)
        functions = tuple(
            self.function(manner, part, max(1, count // parts), debug_nans) for part in range(parts)
        )
        large = any(_is_large(c) for function in functions for c in function.collectives)
        single = manner == "in flight"
        # A batch of another shape on one rank is also a program that differs by rank.
        alone = self.mixed or [c.context for c in functions[0].collectives] == ["jit"]
        return Case(
            self.seed,
            manner,
            functions,
            launches=self.integer(1, 2 if large else 4),
            slow=self.happens(10),
            other_batch=single and not large and self.happens(8),
            uneven=single and alone and self.style == "process" and self.happens(15),
            debug_nans=debug_nans,
            chosen=self.integer(0, self.n - 1),
        )

    def function(self, manner: str, part: int, count: int, debug_nans: bool) -> Function:
        place = self._place(manner) if self.style == "axis" else ""
        collectives: list[Collective] = []
        for _ in range(count):
            if not self.mixed and any(self._differs(c.row) for c in collectives):
                break
            collectives.append(self._collective(manner, part, debug_nans, place, collectives))
        beside = self.pick(CALLBACKS) if self.happens(20) else ""
        return Function(place, tuple(collectives), beside, donated=self.happens(30))

    def _place(self, manner: str) -> str:
        mode = self.pick(("no_check_vma", "check_vma", "pmap"), (60, 30, 10))
        if mode == "pmap" and manner == "op by op":
            mode = "no_check_vma"  # pmap always compiles
        order = "turned" if mode != "pmap" and self.happens(15) else "straight"
        return f"{self.pick((self.n, 3, 2), (75, 15, 10))}-{mode}-{order}"

    def _collective(
        self, manner: str, part: int, debug_nans: bool, place: str, earlier: list[Collective]
    ) -> Collective:
        layout = self._layout()
        parent, team = self._team(manner, part, place)
        last = self.integer(0, len(earlier) - 1) if earlier else 0
        if earlier and self._may_go_on(earlier[last]) and self.happens(35):
            name, dtype, trailing = self._continuation(manner, place, earlier[last])
            operand: str | int = last
            values, context = "result", "jit"
        else:
            names = self._rows(manner, team)
            if earlier and not self.mixed:
                names = [name for name in names if not self._differs(name)]
            name = self.pick(names)
            dtype = self._dtype(ROWS[name], manner)
            context = self._context(ROWS[name], dtype, manner)
            trailing = self._trailing(name, dtype, context, manner)
            values = self._values(ROWS[name], dtype, context, debug_nans)
            operand = self._operand(dtype, trailing, context, place)
        options = self._options(name, dtype, trailing, values)
        return Collective(
            *(name, parent, team, trailing, dtype, values, context, operand, options, layout),
            seed=self.integer(0, 2**31),
        )

    def _differs(self, row: str) -> bool:
        return self.style == "process" and row in program_rows.DIFFER_BY_RANK

    def _layout(self) -> Layout:
        rows = self.rng.integers(0, 4, program_rows.MAX_RANKS).tolist()
        matrix = self.rng.integers(0, 4, (program_rows.MAX_RANKS,) * 2).tolist()
        root = self.integer(0, program_rows.MAX_RANKS - 1)
        return Layout(root, tuple(rows), tuple(map(tuple, matrix)))

    def _team(self, manner: str, part: int, place: str) -> tuple[int | str, str]:
        if self.style == "axis":
            even = int(place.split("-")[0]) % 2 == 0 and not manner == "op by op"
            return 0, self.pick(("low half", "every second")) if even and self.happens(
                12
            ) else "all"
        own = manner == "threads with own communicators"
        if not own and self.happens(4):
            return f"program-{self.seed[0]}-{self.seed[1]}", "all"
        parent = part if own else self.pick((0, 1, 2), (60, 20, 20))
        return parent, self.pick(TEAMS, (60, 14, 13, 13))

    def _rows(self, manner: str, team: str) -> list[str]:
        """Returns the rows that are valid in this manner and team."""
        names = self.names
        if manner in AHEAD:
            names = [name for name in names if name not in program_rows.IN_PROGRAM_ORDER]
        if manner in SHARED:
            names = [name for name in names if name not in program_rows.ON_ORDERED]
        if manner == "op by op" and self.style == "axis":
            # JAX's eager shard_map cannot read results without elements.
            names = [name for name in names if program_rows.SHAPES[name] != "rows"]
        if self.style == "axis" and team != "all":
            names = [name for name in names if not name.startswith("lax.") and name != "barrier"]
        return names

    def _dtype(self, row: Operation, manner: str) -> str:
        if self.happens(35):
            return row.dtype
        # JAX confuses 4-bit arrays with others if a function was compiled ahead of time.
        ahead = manner in AHEAD
        return self.pick(name for name in row.dtypes if not (ahead and name.endswith("int4")))

    def _context(self, row: Operation, dtype: str, manner: str) -> str:
        if manner == "op by op" or row.name in program_rows.MESSAGES or dtype not in EXACT:
            return self.pick(self._simple(row)) if manner != "op by op" else "jit"
        if self.happens(70):
            return "jit"
        if self.happens(30):
            return self.pick(self._simple(row))
        usable = [
            name
            for name, each in CONTEXTS.items()
            if name not in PLAIN and (not each.derives or (row.linear and dtype in DERIVED_FROM))
        ]
        return self.pick(usable)

    def _simple(self, row: Operation) -> list[str]:
        return [each for each in SIMPLE if each != "handles" or row.name in program_rows.STARTED]

    def _trailing(self, name: str, dtype: str, context: str, manner: str) -> tuple[int, ...]:
        least = 1 if name.startswith("lax.all_gather") else 0
        if context != "jit":
            count = self.integer(least, 2)
            high = 2 if context in CONTEXTS and CONTEXTS[context].derives else 4
            return tuple(self.integer(1, high) for _ in range(count))
        kinds = ("scalar", "nothing", "odd", "long", "large")
        kind = self.pick(kinds, (8, 7, 68, 12, 5))
        if kind == "scalar" and least == 0:
            return ()
        eager = manner == "op by op" and self.style == "axis"
        if kind == "nothing" and not eager and name not in program_rows.NEVER_EMPTY:
            return self.pick(((0,), (3, 0), (0, 5)))
        if kind in ("long", "large") and name not in program_rows.SMALL_ONLY:
            share = self.n if program_rows.SHAPES[name] in ("per rank", "rows") else 1
            low, high = (1000, 20_000) if kind == "long" else (1 << 16, 1 << 20)
            count = self.integer(low, high) // (share * jnp.dtype(dtype).itemsize)
            return (count,) if self.happens(70) else (3, count // 3)
        return tuple(self.integer(1, 9) for _ in range(self.integer(1, 3)))

    def _values(self, row: Operation, dtype: str, context: str, debug_nans: bool) -> str:
        floating = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
        # XLA may convert float8 values through a type that lacks some of them.
        if context not in SIMPLE or debug_nans or dtype.startswith("float8"):
            return "small"
        if row.moves:
            return self.pick(("small", "bits"))
        return "nan" if floating and self.happens(15) else "small"

    def _operand(self, dtype: str, trailing: tuple[int, ...], context: str, place: str) -> str:
        kinds = ["argument", "temporary"]
        plain = np.dtype(jnp.dtype(dtype)).kind in "iufb" and 0 < np.prod(trailing) < 100
        if plain and context == "jit" and "check_vma" not in place.split("-"):
            kinds.append("callback")
        return self.pick(kinds, (55, 40, 5)[: len(kinds)])

    def _may_go_on(self, collective: Collective) -> bool:
        """Whether another row may use its result: small integers."""
        plain = collective.context == "jit" and collective.values != "nan"
        depth = 0 if isinstance(collective.operand, str) else 1
        small = ROWS[collective.row].moves or collective.dtype in EXACT
        # Results of rows that only move values are compared bit by bit, and jax.lax products may
        # lose the sign of a zero.
        small &= not (collective.row.endswith("-prod") and ("backend", "xla") in collective.options)
        return plain and small and depth == 0 and collective.row in KEEPS_SHAPE

    def _continuation(
        self, manner: str, place: str, before: Collective
    ) -> tuple[str, str, tuple[int, ...]]:
        # With check_vma JAX rejects a reduction of values whose type is the same on all ranks.
        alike = ROWS[before.row].same and "check_vma" in place.split("-")
        names = [
            name
            for name in self._rows(manner, before.team)
            if name in KEEPS_SHAPE
            and not (alike and name.startswith("allreduce"))
            and before.dtype in ROWS[name].dtypes
            and (ROWS[name].moves or (before.values == "small" and before.dtype in EXACT))
            and not name.endswith(("-mean", "pmean", "-prod"))
            and name not in program_rows.SMALL_ONLY
            and (self.mixed or not self._differs(name))
            and (before.trailing or not name.startswith("lax."))
            and (0 not in before.trailing or name not in program_rows.NEVER_EMPTY)
        ]
        return self.pick(names), before.dtype, before.trailing

    def _options(
        self, name: str, dtype: str, trailing: tuple[int, ...], values: str
    ) -> tuple[tuple[str, str], ...]:
        if name in program_rows.WITHOUT_OPTIONS:
            return ()
        options = {}
        if self._has_other_backend(name, values) and self.happens(12):
            return (("backend", BACKENDS[self.style]),)
        codec = self.pick(CODECS, (50, 14, 9, 9, 9, 9))
        if codec is not None and name != "bcast-ref":
            options["codec"] = codec
        # Algorithms of the engine, and of the tests' own package (tests/plugin).
        names = list(algorithms.names(program_rows.collective(name)))
        if name == "bcast-ref":  # these refuse ref=
            names = [each for each in names if each != "chain_recoded" and "plugin" not in each]
        if "codec" in options:  # this one ignores codecs
            names = [each for each in names if each != "plugin_grouped"]
        if len(names) > 1 and self.happens(35):
            options["algorithm"] = self._algorithm(names, dtype, trailing)
        return tuple(options.items())

    def _has_other_backend(self, name: str, values: str) -> bool:
        if name == "bcast-ref" or name.startswith("lax."):
            return False
        if self.style == "process":
            return program_rows.collective(name) in program_rows.BY_MPI
        # jax.lax loses NaN in minima and maxima on CPUs.
        return not (values == "nan" and name.endswith(("-min", "-max")))

    def _algorithm(self, names: Any, dtype: str, trailing: tuple[int, ...]) -> str:
        name, bytes_there = self.pick(names), int(np.prod(trailing)) * jnp.dtype(dtype).itemsize
        chunks = [chunk for chunk in CHUNKS if chunk * 100 > bytes_there]
        if name == "plugin_pairs":  # sends rows uncut: with smaller chunks the engine refuses it
            chunks = [chunk for chunk in chunks if chunk >= bytes_there]
        options = [f"chunk={self.pick(chunks)}"] if chunks and self.happens(60) else []
        if name == "parameter_server" and self.happens(50):
            options.append(f"partitions={self.integer(1, 5)}")
        return name + ":" * bool(options) + ",".join(options)


def _is_large(collective: Collective) -> bool:
    size = int(np.prod(collective.trailing)) * jnp.dtype(collective.dtype).itemsize
    return size > 20_000

"""Runs an operation in all contexts, in few compiled programs.

Compilation dominates the time, so contexts share a program. That also puts many operations in
flight at once. If that program fails, each context runs alone, so that a test fails only for errors
of its own context.
"""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from golden_errors import raises

from contract import data
from contract.operations import Operation
from contract.places import Place
from contract.transforms import TRANSFORMS, Transform


def contexts(operation: Operation, n: int) -> list[Transform]:
    """Returns the contexts in which to test an operation on n ranks."""
    differentiable = jnp.issubdtype(jnp.dtype(operation.dtype), jnp.inexact)
    return [
        row
        for row in TRANSFORMS
        if (differentiable or not row.derives)  # integers have no derivative in JAX
        and (not row.once or n == 3)
        and (not operation.alike or row.name == "jit")
    ]


class Batch:
    """One operation at one place."""

    def __init__(self, place: Place, operation: Operation):
        self.place, self.operation = place, operation
        self._results: dict[str, Any] | None = None
        self._one_by_one = False

    def check(self, transform: Transform) -> None:
        """Asserts the results of the operation in the context of `transform`."""
        if transform.derives and not self.operation.linear:
            self._check_refusal(transform)
            return
        actual = self._result(transform)
        expected = jax.tree.map(lambda y: y[self.place.seen], self._expected(transform))
        data.assert_same(actual, expected, ulps=self.operation.ulps)

    def check_dtypes(self) -> None:
        """Asserts that every dtype of the operation's row works, all in one program."""
        operation, place = self.operation, self.place
        make = self._any_bits if operation.moves else operation.inputs
        inputs = {name: make(place.n, seed, name) for seed, name in enumerate(operation.dtypes)}

        def program(inputs: Any, flag: Any) -> Any:
            return {name: operation.call(place, x) for name, x in inputs.items()}

        results = place.run(program, inputs)
        wrong = []
        for name, x in inputs.items():
            try:
                expected = operation.expected(x)[place.seen]
                data.assert_same(results[name], expected, bits=operation.moves)
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
        assert not wrong, "\n".join(wrong)

    def _any_bits(self, n: int, seed: int, dtype: str) -> np.ndarray:
        return data.any_bits((n, *self.operation.shape(n)), dtype, seed)

    def _result(self, transform: Transform) -> Any:
        if transform.alone or self._one_by_one:
            return self._alone(transform)
        if self._results is None:
            try:
                self._results = self._together()
            except Exception:
                self._one_by_one = True
                return self._alone(transform)
        return self._results[transform.name]

    def _together(self) -> dict[str, Any]:
        rows = [
            row
            for row in contexts(self.operation, self.place.n)
            if not row.alone and (self.operation.linear or not row.derives)
        ]

        def program(inputs: Any, flag: Any) -> Any:
            return {t.name: t.program(self._call, *inputs[t.name], flag) for t in rows}

        return self.place.run(program, {t.name: self._inputs(t) for t in rows})

    def _alone(self, transform: Transform) -> Any:
        return self.place.run(
            lambda inputs, flag: transform.program(self._call, *inputs, flag),
            self._inputs(transform),
            jit=transform.alone != "eager",
            donate=transform.alone == "donated",
        )

    def _check_refusal(self, transform: Transform) -> None:
        op = self.operation.name.split("-")[-1].removeprefix("lax.p")
        with raises(NotImplementedError, f"op='{op}'", "derivative", golden=False):
            self._alone(transform)

    def _call(self, x: Any) -> Any:
        return self.operation.call(self.place, x)

    def _inputs(self, transform: Transform) -> list[np.ndarray]:
        """Returns x and d like the operand and w like the result, different in each context."""
        seed = zlib.crc32(transform.name.encode())
        n, operation = self.place.n, self.operation
        x, d = operation.inputs(n, seed), operation.inputs(n, seed + 1)
        shape = operation.expected(x).shape
        w = data.small_integers(shape, operation.dtype, seed + 2, **operation.values(n))
        return [x, d, w]

    def _expected(self, transform: Transform) -> Any:
        operation = self.operation
        return transform.expected(
            operation.expected, operation.transposed, *self._inputs(transform)
        )

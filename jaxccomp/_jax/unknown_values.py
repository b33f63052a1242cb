"""JAX's errors for a shape that depends on values."""

from __future__ import annotations

import jax

_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
# Texts of JAX's plain IndexError or TypeError for the same reason. The last is in all errors that
# name a tracer (JAX 0.12), the others are of single functions.
_TEXTS = (
    "must be static integers",
    "sequences of concrete values",
    "must have static start/stop/step",
    "was not available in Python because",
)


def depends_on_values(error: Exception) -> bool:
    """Return whether JAX has raised ``error`` because a shape depends on values."""
    return isinstance(error, _ERRORS) or any(text in str(error) for text in _TEXTS)

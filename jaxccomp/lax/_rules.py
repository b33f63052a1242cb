"""Rules that assign codecs to the collectives of a program."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxccomp import codecs, errors

# The names of jax.lax.
COLLECTIVES = (
    "all_gather",
    "all_to_all",
    "ppermute",
    "psum",
    "psum_scatter",
    "ragged_all_to_all",
)


@dataclasses.dataclass(frozen=True)
class CollectiveRule:
    """A codec for collectives that match patterns. Patterns are as for file names (fnmatch).

    Attributes:
      codec: a spec; None for no codec.
      collective: a pattern of names of ``jax.lax``: "psum" (also ``pmean``, and the sums that
        ``jax.grad`` inserts for parameters that do not vary), "psum_scatter", "all_gather",
        "all_to_all", "ragged_all_to_all" or "ppermute".
      axis_name: a pattern of axes; one of the collective's axes must match.
      scope: a pattern of ``jax.named_scope``, ``transpose(jvp(encoder))/layer_1``; "" outside all.
      dtype: a pattern of dtypes; "floating" matches all floating dtypes.
      min_bytes: the minimum size of an operand on each device. Small operands, such as a loss, a
        norm or a count, should be exact.
    """

    codec: codecs.CodecLike
    collective: str = "*"
    axis_name: str = "*"
    scope: str = "*"
    dtype: str = "floating"
    min_bytes: int = 1024
    least_bytes: dataclasses.InitVar[int | None] = None  # min_bytes in version 0.1

    def __post_init__(self, least_bytes: int | None) -> None:
        if least_bytes is not None:
            errors.warn_renamed(
                "CollectiveRule(least_bytes=)", "min_bytes=", stacklevel=4
            )  # above __init__
            object.__setattr__(self, "min_bytes", least_bytes)
        codecs.parse(self.codec)
        if not fnmatch.filter(COLLECTIVES, self.collective):
            raise errors.unknown("collective", self.collective, COLLECTIVES)
        if self.min_bytes < 0:
            raise errors.InvalidArgumentError(
                f"CollectiveRule: min_bytes must be at least 0, not {self.min_bytes}."
            )

    @property
    def is_lossy(self) -> bool:
        return not codecs.is_lossless(self.codec)

    def takes(self, site: Site) -> bool:
        if self.dtype == "floating":
            if not jnp.issubdtype(site.dtype, jnp.floating):
                return False
        elif not fnmatch.fnmatchcase(site.dtype.name, self.dtype):
            return False
        return (
            fnmatch.fnmatchcase(site.collective, self.collective)
            and any(fnmatch.fnmatchcase(str(axis), self.axis_name) for axis in site.axes)
            and fnmatch.fnmatchcase(site.scope, self.scope)
            and site.size_bytes >= self.min_bytes
        )


@dataclasses.dataclass(frozen=True)
class Site:
    """A collective of a program.

    Attributes:
      collective: its name in jax.lax.
      axes: the names of its axes.
      shape: of the operand, on each device.
      dtype: of the operand.
      scope: the name stack around it.
      where: its line, such as ``train.py:41``.
    """

    collective: str
    axes: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    scope: str
    where: str

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        axes = ", ".join(map(str, self.axes))
        return f"{self.collective} over {axes} of {self.dtype.name}[{shape}] at {self.where}"


def as_rules(
    policy: codecs.CodecLike | CollectiveRule | list[CollectiveRule] | tuple[CollectiveRule, ...],
) -> tuple[CollectiveRule, ...]:
    """Return the rules of a policy; a codec alone applies to large floating operands."""
    if isinstance(policy, (list, tuple)):
        for rule in policy:
            if not isinstance(rule, CollectiveRule):
                raise errors.InvalidArgumentError(
                    "compress: a policy is a codec, a jaxccomp.CollectiveRule or a sequence of "
                    f"them, not of {rule!r}."
                )
        return tuple(policy)
    return (policy if isinstance(policy, CollectiveRule) else CollectiveRule(policy),)


def choose(rules: Sequence[CollectiveRule], site: Site) -> CollectiveRule | None:
    """Return the first rule that matches a collective, or None.

    Raises:
      UnsupportedDTypeError: when a lossy codec would encode values that are not floating.
    """
    for rule in rules:
        if rule.takes(site):
            if rule.is_lossy and not jnp.issubdtype(site.dtype, jnp.inexact):
                raise errors.UnsupportedDTypeError(
                    f"compress: {rule} takes a {site}, but {codecs.canonical(rule.codec)!r} is "
                    'lossy, and for floating values. Leave dtype="floating", or use a lossless '
                    "codec."
                )
            return rule
    return None

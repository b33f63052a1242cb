"""Chooses the codec of each gradient, and the gradients of each bucket."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr

from jaxccomp import codecs, errors
from jaxccomp._api.arguments import check_dense

_MIN_FILL = 1 / 8  # fraction of bucket_bytes; smaller buckets are not sent alone


@dataclasses.dataclass(frozen=True)
class Rule:
    """A codec for the gradients whose path and size match.

    Attributes:
      codec: a spec; None: no codec.
      pattern: of the leaf's path, ``layers/0/kernel``: as for file names, with ``*``, ``?`` and
        ``[]``; ``*`` also matches ``/``.
      min_bytes: the minimum size of a leaf.
      from_step: the first step, counted from 0, at which the rule applies: during warm-up gradients
        change too much for codecs that drop most values (Lin et al. 2018).
    """

    codec: codecs.CodecLike
    pattern: str = "*"
    min_bytes: int = 0
    from_step: int = 0
    least_bytes: dataclasses.InitVar[int | None] = None  # min_bytes in version 0.1

    def __post_init__(self, least_bytes: int | None) -> None:
        if least_bytes is not None:
            errors.warn_renamed("Rule(least_bytes=)", "min_bytes=", stacklevel=4)  # above __init__
            object.__setattr__(self, "min_bytes", least_bytes)
        codecs.parse(self.codec)
        for name in ("min_bytes", "from_step"):
            if (value := getattr(self, name)) < 0:
                raise errors.InvalidArgumentError(f"Rule: {name} must be at least 0, not {value}.")

    def takes(self, path: str, size_bytes: int) -> bool:
        return fnmatch.fnmatchcase(path, self.pattern) and size_bytes >= self.min_bytes


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Indices of leaves that are reduced in one call, and their codec."""

    codec: str
    leaves: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The buckets of each phase; phase i begins at step ``begins[i]``."""

    begins: tuple[int, ...]
    phases: tuple[tuple[Bucket, ...], ...]


def plan(
    tree: Any, rules: Sequence[Rule], default: codecs.CodecLike, bucket_bytes: int | None
) -> Plan:
    """Return the buckets of the leaves of ``tree`` in each phase.

    Raises:
      InvalidArgumentError: for a rule that matches no leaf.
      UnsupportedDTypeError: for a rule with a lossy codec that matches no floating leaf.
    """
    check_dense("allreduce_gradients", tree)
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    paths = [keystr(path, simple=True, separator="/") for path, _ in leaves]
    sizes = [_bytes(leaf) for _, leaf in leaves]
    for rule in rules:
        taken = [i for i, path in enumerate(paths) if rule.takes(path, sizes[i])]
        if not taken:
            raise errors.InvalidArgumentError(
                f"allreduce_gradients: no gradient takes {rule}; there are "
                f"{errors.listed(paths[:20])}{' and more' if len(paths) > 20 else ''}."
            )
        dtypes = {jax.numpy.result_type(leaves[i][1]).name for i in taken}
        if not codecs.is_lossless(rule.codec) and not any(map(_is_floating, dtypes)):
            raise errors.UnsupportedDTypeError(
                f"allreduce_gradients: {rule} takes {errors.listed([paths[i] for i in taken])}, of "
                f"{errors.listed(sorted(dtypes))}, which a lossy codec leaves as they are. Use a "
                "lossless one, or None, or a pattern that takes floating gradients."
            )
    begins = tuple(sorted({0, *(rule.from_step for rule in rules)}))
    phases = []
    for begin in begins:
        active = [rule for rule in rules if rule.from_step <= begin]
        chosen = [
            next((rule.codec for rule in active if rule.takes(path, size)), default)
            for path, size in zip(paths, sizes, strict=True)
        ]
        phases.append(
            _buckets(paths, sizes, [codecs.canonical_choice(c) for c in chosen], bucket_bytes)
        )
    return Plan(begins, tuple(phases))


def _is_floating(dtype: str) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.floating))


def _bytes(leaf: Any) -> int:
    return int(np.prod(np.shape(leaf))) * jax.numpy.result_type(leaf).itemsize


def _buckets(
    paths: Sequence[str], sizes: Sequence[int], chosen: Sequence[str], maximum: int | None
) -> tuple[Bucket, ...]:
    """Group leaves by codec, last layers first, since backward computes their gradients first.

    A bucket closes before a leaf that would exceed ``maximum``. But a bucket below ``_MIN_FILL *
    maximum``, such as the bias between two large kernels, costs more as a call of its own than it
    saves, so the leaf is added to it. If the last bucket is below this limit, it is merged into the
    previous bucket of its codec.
    """
    order = range(len(paths))
    if maximum is not None:
        order = sorted(order, key=lambda i: _natural(paths[i]), reverse=True)
    open_ones: dict[str, tuple[list[int], int]] = {}
    minimum = 0.0 if maximum is None else maximum * _MIN_FILL
    done: list[Bucket] = []
    for i in order:
        members, used = open_ones.get(chosen[i], ([], 0))
        if maximum is not None and members and used >= minimum and used + sizes[i] > maximum:
            done.append(Bucket(chosen[i], tuple(members)))
            members, used = [], 0
        open_ones[chosen[i]] = ([*members, i], used + sizes[i])
    for codec, (members, used) in open_ones.items():
        before = [number for number, bucket in enumerate(done) if bucket.codec == codec]
        if used < minimum and before:
            members = [*done.pop(before[-1]).leaves, *members]
        done.append(Bucket(codec, tuple(members)))
    return tuple(done)


def _natural(path: str) -> list[tuple[bool, Any]]:
    """Sort key in which numbers compare as numbers: layer 10 after layer 9."""
    parts = re.split(r"(\d+)", path)
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in parts]

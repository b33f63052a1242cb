"""Measured times of a program's calls in this process, from the engine's log."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from jaxccomp._native import engine
from jaxccomp._primitives.planning import Lowered

# The keys of the engine's rows (`jaxccomp.stats.LoggedCall`); the algorithm is the requested one.
_KEY = (
    *("backend", "operation", "reduce_op", "root", "operands", "where", "communicator", "ranks"),
    *("codec", "asked_algorithm"),
)


def rows() -> Mapping[Hashable, Mapping[str, Any]]:
    """Return the engine's rows of timed call sites, by the key of `key_of`."""
    if not engine.available():
        return {}
    found = engine.load().call_log()[0]
    # Of several with one key, take the one that ran most often.
    return {_key(row): row for row in sorted(found, key=lambda row: row["calls"])}


def key_of(lowered: Lowered) -> Hashable:
    """Return the key by which a lowered call and the row of its call site are matched."""
    call = lowered.call
    return _key(
        {
            "backend": lowered.mover,
            "operation": call.collective,
            "reduce_op": call.reduce_op,
            "root": call.root,
            "operands": lowered.operands,
            "where": lowered.where,
            "communicator": "" if call.comm is None else call.comm.name,
            "ranks": call.size,
            "codec": call.codec,
            "asked_algorithm": call.algorithm,
        }
    )


def _key(row: Mapping[str, Any]) -> Hashable:
    return tuple(row[name] for name in _KEY)

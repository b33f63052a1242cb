"""What calls of a program have taken in this process, by what the engine has counted of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from jaxccomp._native import engine
from jaxccomp._primitives.planning import Lowered

# As the engine's rows name it (`jaxccomp.stats.LoggedCall`), but for the algorithm, which is what
# the program asks for.
_KEY = (
    *("backend", "operation", "reduce_op", "root", "operands", "where", "communicator", "ranks"),
    *("codec", "asked_algorithm"),
)


def rows() -> Mapping[Hashable, Mapping[str, Any]]:
    """The rows of call sites that the engine has timed, by what `key_of` gives for a call."""
    if not engine.available():
        return {}
    found = engine.load().call_log()[0]
    # Where several look alike, the one that ran most often.
    return {_key(row): row for row in sorted(found, key=lambda row: row["calls"])}


def key_of(lowered: Lowered) -> Hashable:
    """What a call that has been lowered has in common with the row of its call site."""
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

"""One JAX primitive per collective, with its lowering, batching and derivatives.

`bind` binds an operation to the primitive of its collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxccomp import _jax
from jaxccomp._call import Call

Array = Any

# By collective. primitives.py fills it: the rules of the primitives import `bind` from this file.
PRIMITIVES: dict[str, Any] = {}


def bind(call: Call, operands: Sequence[Array]) -> list[Array]:
    """Run or stage ``call`` on all operands at once."""
    operands = [_jax.vary(x, call.axes) for x in operands]
    return PRIMITIVES[call.collective].bind(*operands, call=located(call))


def located(call: Call) -> Call:
    """Return ``call``, with the program's source line if it runs eagerly."""
    return call.at(_jax.this_line()) if _jax.runs_eagerly() else call

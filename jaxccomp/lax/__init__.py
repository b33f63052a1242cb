"""The parallel operations of ``jax.lax``, with ``codec=`` and the other communication options.

Names, arguments, results and derivatives are as in ``jax.lax``, so ``jaxccomp.lax.psum`` can
replace ``jax.lax.psum``. A pytree is sent in one exchange. Ranks along a tuple of axes are numbered
as in ``jax.lax.axis_index``. Operands whose type is unreduced or reduced over an axis are passed to
``jax.lax``; they cannot have a codec.

`jaxccomp.compress` replaces the operations of ``jax.lax`` by these in a whole program.
"""

from jaxccomp._api.lax_reductions import pmax, pmean, pmin, psum
from jaxccomp.lax._operations import (
    all_gather,
    all_to_all,
    pbroadcast,
    ppermute,
    psum_scatter,
    ragged_all_to_all,
)

__all__ = [
    "all_gather",
    "all_to_all",
    "pbroadcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
    "ragged_all_to_all",
]

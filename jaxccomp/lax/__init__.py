"""The parallel operations of ``jax.lax``, with ``codec=`` and the other options of how to send.

Names, arguments, results and derivatives are those of ``jax.lax``, so ``jax.lax.psum`` may become
``jaxccomp.lax.psum``. A pytree goes in one exchange. Ranks along a tuple of axes are numbered as
``jax.lax.axis_index`` does. What only ``jax.lax`` knows (types that are unreduced or reduced over
an axis) is handed to it, and then no codec may be given.

`jaxccomp.compress` does so for a whole program: it puts these in the place of those of ``jax.lax``.
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

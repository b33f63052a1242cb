"""Codecs of one's own: two functions in JAX, and every operation takes them.

`jaxccomp.register_codec` registers them, `check` tries whether they are what operations need, and
the operators are what codecs are made of. docs/toolkit.md has an example in twenty lines, and what
is sent.
"""

from jaxccomp._traced.codecs.check import Report, check
from jaxccomp._traced.codecs.operators import (
    filter_top,
    filter_where,
    greatest,
    join_blocks,
    pack,
    reduce_blocks,
    round_randomly,
    sampled_quantile,
    scatter,
    split_blocks,
    uniform,
    unpack,
)

__all__ = [
    "Report",
    "check",
    "filter_top",
    "filter_where",
    "greatest",
    "join_blocks",
    "pack",
    "reduce_blocks",
    "round_randomly",
    "sampled_quantile",
    "scatter",
    "split_blocks",
    "uniform",
    "unpack",
]

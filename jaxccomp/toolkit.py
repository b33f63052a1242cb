"""Custom codecs for all operations, from two functions in JAX.

`jaxccomp.register_codec` registers a codec, `check` tests that it satisfies the requirements of
operations, and the other functions are building blocks of codecs. docs/toolkit.md has an example of
twenty lines, and describes the messages.
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

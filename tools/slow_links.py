"""Prints the table of docs/slow_links.md: bytes that a rank sends per parameter and inner step.

python tools/slow_links.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp import codecs
from jaxccomp._native import terminal
from jaxccomp.optim import _sparse_loco

EVERY = 30
DENSITY = 1 / 64
RANKS = (4, 32)
PARAMETERS = 100_000_000
LINK_BITS = 100e6
# name, codec (None: SparseLoCo), inner steps per exchange
ROWS = (
    ("every step, raw", "raw", 1),
    ("every step, `bf16`", "bf16", 1),
    ("every step, `int8`", "int8", 1),
    (f"`diloco`, H = {EVERY}, raw", "raw", EVERY),
    (f"`diloco`, H = {EVERY}, `int8`", "int8", EVERY),
    (f"`diloco`, H = {EVERY}, `int4`", "int4", EVERY),
    (f"`sparse_loco`, H = {EVERY}, 1 of {round(1 / DENSITY)}", None, EVERY),
)
_COUNT = 1 << 20


def encoded_bytes(codec: str | None) -> float:
    """The mean encoded bytes of a float32 value."""
    if codec is None:
        like = jax.ShapeDtypeStruct((_COUNT,), jnp.float32)
        encoded = jax.eval_shape(lambda x: _sparse_loco._encode(x, DENSITY, True), like)
        return sum(each.size * each.dtype.itemsize for each in encoded) / _COUNT
    values = np.random.default_rng(0).standard_normal(_COUNT, np.float32)
    return len(codecs.encode(codec, values)) / _COUNT


def sent_bytes(codec: str | None, every: int, ranks: int) -> float:
    """Bytes that a rank sends per parameter and inner step, by allreduce (None: by allgather)."""
    times = ranks - 1 if codec is None else 2 * (ranks - 1) / ranks
    return times * encoded_bytes(codec) / every


def table() -> str:
    """The table in Markdown."""
    head = ["", *(f"bytes, {ranks} ranks" for ranks in RANKS)]
    head += [f"seconds, {ranks} ranks" for ranks in RANKS]
    rows = []
    for name, codec, every in ROWS:
        sent = [sent_bytes(codec, every, ranks) for ranks in RANKS]
        seconds = [each * PARAMETERS * 8 / LINK_BITS for each in sent]
        rows.append([name, *(f"{x:.3g}" for x in sent + seconds)])
    return terminal.markdown(head, rows, "<" + ">" * (len(head) - 1)) + "\n"


if __name__ == "__main__":
    print(table(), end="")

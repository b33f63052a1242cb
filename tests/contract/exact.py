"""Lossless codecs: every operation gives the same bits with and without the codec."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from contract import data
from contract.batch import Batch
from contract.operations import Operation
from contract.places import Place

EXACT = ("lossless",)


def coded(place: Place, codec: str) -> Place:
    """Returns the place with ``codec`` for every operation."""
    place.how = place.how | {"codec": codec}
    return place


def check_dtypes(place: Place, operation: Operation, codec: str) -> None:
    """Checks every dtype of the operation's row, including random bits."""
    Batch(coded(place, codec), operation).check_dtypes()


def check_long(place: Place, codec: str) -> None:
    """Checks compressible values like weights, with several chunks and a partial one."""
    coded(place, codec)
    n, count = place.n, 400_003
    rng = np.random.default_rng(7)
    x = {
        name: (rng.standard_normal((n, count)) * 0.02).astype(jnp.dtype(name))
        for name in ("bfloat16", "float16", "float32", "float64")
    }

    def program(x: Any, flag: Any) -> Any:
        del flag
        return {
            "bcast": jcc.bcast(x, root=n - 1, **place.how),
            "allgather": jcc.allgather(x, **place.how),
            "max": jcc.allreduce(x, "max", **place.how),
        }

    results = place.run(program, x)
    for name, values in x.items():
        whole = np.broadcast_to(values, (n, n, count))
        expected = {
            "bcast": np.broadcast_to(values[n - 1], (n, count)),
            "allgather": whole,
            "max": np.broadcast_to(values.max(axis=0), (n, count)),
        }
        for operation, each in expected.items():
            data.assert_same(
                np.asarray(results[operation][name]).reshape(each[place.seen].shape),
                each[place.seen],
                bits=True,
            )

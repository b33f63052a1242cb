"""What libraries of collectives can do: operations, reductions and types of their backends."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxccomp import codecs, errors


@dataclasses.dataclass(frozen=True)
class _Library:
    """A library whose own collectives a backend calls.

    Attributes:
      name: for errors.
      collectives: that it has.
      reduce_ops: likewise.
      choice: what chooses its algorithms.
    """

    name: str
    collectives: tuple[str, ...]
    reduce_ops: tuple[str, ...]
    choice: str


_OF_ALL = (
    *("bcast", "allreduce", "reduce", "allgather", "gather", "scatter"),
    *("reduce_scatter", "alltoall"),
)
_REDUCE_OPS = ("sum", "mean", "prod", "min", "max")

# By backend.
LIBRARIES = {
    "mpi": _Library(
        "MPI",
        (
            *_OF_ALL,
            *("allgatherv", "gatherv", "scatterv", "alltoallv"),
            *("scan", "exscan", "barrier"),
        ),
        (*_REDUCE_OPS, "and", "or", "xor"),
        "MPI (with variables of its own)",
    ),
    "nccl": _Library(
        "NCCL",
        (*_OF_ALL, "permute", "sendrecv", "send", "recv"),
        _REDUCE_OPS,
        "NCCL (NCCL_ALGO)",
    ),
}

_INSTEAD = 'Leave backend="auto" for it: the engine, or jax.lax.'


def check(
    backend: str,
    collective: str,
    *,
    op: str | None,
    codec: str,
    cotangent_codec: str,
    algorithm: str,
    referenced: bool,
) -> None:
    """Raises unless the library of ``backend``, if it is one's, has the operation.

    Args:
      backend: its name.
      collective: its name.
      op: its reduction, or None or "".
      codec: canonical.
      cotangent_codec: canonical, or "same".
      algorithm: as given.
      referenced: whether differences to references should travel.
    """
    library = LIBRARIES.get(backend)
    if library is None:
        return
    if collective not in library.collectives:
        what = f'operation of backend="{backend}":'
        raise errors.unknown(what, collective, library.collectives, _INSTEAD)
    if op and op not in library.reduce_ops:
        what = f'op of {collective} with backend="{backend}":'
        raise errors.unknown(what, op, library.reduce_ops, _INSTEAD)
    if referenced:
        raise errors.InvalidArgumentError(
            f'{collective}: {library.name} sends values as they are, so backend="{backend}" takes '
            'no ref=. Differences need backend="native" or "auto".'
        )
    for name, given in (("codec", codec), ("cotangent_codec", cotangent_codec)):
        if given != "same" and not codecs.is_raw(given):
            raise errors.InvalidArgumentError(
                f'{collective}: {library.name} sends values as they are, so backend="{backend}" '
                f'takes {name}=None (or "raw"), not {given!r}. Codecs need backend="native", "xla" '
                'or "auto".'
            )
    if algorithm != "auto":
        raise errors.unknown(
            f"algorithm of {collective}:",
            algorithm,
            ["auto"],
            f'backend="{backend}" leaves the choice to {library.choice}.',
        )


def check_dtype(backend: str, collective: str, op: str, dtype: Any) -> None:
    """Raises unless the library of ``backend`` reduces values of ``dtype`` with ``op``.

    MPI reduces all that the engine does.
    """
    dtype = jnp.dtype(dtype)
    if backend != "nccl":
        return
    if dtype in (jnp.int16, jnp.uint16):
        why, instead = "does not reduce 16-bit integers", "Convert to int32 first"
    elif jnp.issubdtype(dtype, jnp.complexfloating) and op == "prod":
        why, instead = "does not multiply complex numbers", "Use another backend"
    else:
        return
    raise errors.UnsupportedDTypeError(
        f"{collective}: NCCL {why}, so op={op!r} of dtype {dtype.name} does not go with "
        f'backend="nccl". {instead}, or leave backend="auto".'
    )

"""What NCCL can do: the operations, reductions and types of ``backend="nccl"``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxccomp import codecs, errors

COLLECTIVES = (
    "bcast",
    "allreduce",
    "reduce",
    "allgather",
    "gather",
    "scatter",
    "reduce_scatter",
    "alltoall",
    "permute",
    "sendrecv",
    "send",
    "recv",
)
REDUCE_OPS = ("sum", "mean", "prod", "min", "max")

_INSTEAD = 'Leave backend="auto" for it: the engine, or jax.lax.'


def check(
    collective: str,
    *,
    op: str | None,
    codec: str,
    cotangent_codec: str,
    algorithm: str,
    referenced: bool,
) -> None:
    """Raises unless NCCL has the operation.

    Args:
      collective: its name.
      op: its reduction, or None or "".
      codec: canonical.
      cotangent_codec: canonical, or "same".
      algorithm: as given.
      referenced: whether differences to references should travel.
    """
    if collective not in COLLECTIVES:
        raise errors.unknown('operation of backend="nccl":', collective, COLLECTIVES, _INSTEAD)
    if op and op not in REDUCE_OPS:
        raise errors.unknown(f'op of {collective} with backend="nccl":', op, REDUCE_OPS, _INSTEAD)
    for name, given in (("codec", codec), ("cotangent_codec", cotangent_codec)):
        if given != "same" and not codecs.is_raw(given):
            raise errors.InvalidArgumentError(
                f'{collective}: NCCL sends values as they are, so backend="nccl" takes {name}=None '
                f'(or "raw"), not {given!r}. Codecs need backend="native", "xla" or "auto".'
            )
    if referenced:
        raise errors.InvalidArgumentError(
            f'{collective}: NCCL sends values as they are, so backend="nccl" takes no ref=. '
            'Differences need backend="native" or "auto".'
        )
    if algorithm != "auto":
        raise errors.unknown(
            f"algorithm of {collective}:",
            algorithm,
            ["auto"],
            'backend="nccl" leaves the choice to NCCL (NCCL_ALGO).',
        )


def check_dtype(collective: str, op: str, dtype: Any) -> None:
    """Raises unless NCCL reduces values of ``dtype`` with ``op``."""
    dtype = jnp.dtype(dtype)
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

"""The operations that MPI's own collectives (``backend="mpi"``) support."""

from __future__ import annotations

from jaxccomp import codecs, errors

COLLECTIVES = (
    *("bcast", "allreduce", "reduce", "allgather", "gather", "scatter"),
    *("reduce_scatter", "alltoall"),
    *("allgatherv", "gatherv", "scatterv", "alltoallv"),
    *("scan", "exscan", "barrier"),
)


def check(
    collective: str, *, codec: str, cotangent_codec: str, algorithm: str, referenced: bool
) -> None:
    """Raise unless MPI has the operation. MPI has all reductions.

    Args:
      collective: the operation's name.
      codec: canonical.
      cotangent_codec: canonical, or "same".
      algorithm: as given by the user.
      referenced: whether the user gives ``ref=``.
    """
    if collective not in COLLECTIVES:
        raise errors.unknown(
            'operation of backend="mpi":',
            collective,
            COLLECTIVES,
            'Leave backend="auto" for it: the engine, or jax.lax.',
        )
    if referenced:
        raise errors.InvalidArgumentError(
            f'{collective}: MPI sends values as they are, so backend="mpi" takes no ref=. '
            'Differences need backend="native" or "auto".'
        )
    for name, given in (("codec", codec), ("cotangent_codec", cotangent_codec)):
        if given != "same" and not codecs.is_raw(given):
            raise errors.InvalidArgumentError(
                f'{collective}: MPI sends values as they are, so backend="mpi" takes {name}=None '
                f'(or "raw"), not {given!r}. Codecs need backend="native", "xla" or "auto".'
            )
    if algorithm != "auto":
        raise errors.unknown(
            f"algorithm of {collective}:",
            algorithm,
            ["auto"],
            'backend="mpi" leaves the choice to MPI (with variables of its own).',
        )

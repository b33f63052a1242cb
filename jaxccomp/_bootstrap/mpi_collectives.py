"""Passes MPI's functions and handles to the engine, for ``backend="mpi"``."""

from __future__ import annotations

from typing import Any

from jaxccomp._bootstrap.mpi import handle

# MPI's types by the engine's dtypes. MPI has none for half types; the engine reduces those itself.
_TYPES = {
    "bool": "BYTE",
    **{f"int{bits}": f"INT{bits}_T" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}_T" for bits in (8, 16, 32, 64)},
    "float16": "UINT16_T",
    "bfloat16": "UINT16_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
    "opaque8": "BYTE",
}
_OPS = {
    **{name: name.upper() for name in ("sum", "prod", "min", "max")},
    **{name: f"B{name.upper()}" for name in ("and", "or", "xor")},
}


def use(core: Any, mpi: Any, comm: Any) -> None:
    """Enables ``backend="mpi"`` in the engine.

    Args:
      core: the engine.
      mpi: mpi4py's MPI module, initialised.
      comm: a duplicate of COMM_WORLD, used only for this.
    """

    def handles(names: dict[str, str]) -> dict[str, int]:
        return {name: handle(mpi, getattr(mpi, each)) for name, each in names.items()}

    core.use_mpi_collectives(
        handle(mpi, comm),
        handle(mpi, mpi.ERRORS_RETURN),
        int(mpi.IN_PLACE) & (2**64 - 1),
        comm.Get_attr(mpi.TAG_UB),
        handles(_TYPES),
        handles(_OPS),
    )

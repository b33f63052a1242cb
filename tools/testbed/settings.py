"""Settings of each MPI's collectives to try for large values.

All are tried, since the fastest depends on hosts and link. "default" sets nothing. Settings that
were never fastest for large values between hosts are left out.
"""

from __future__ import annotations

Setting = tuple[str, dict[str, str]]  # a name, and variables for mpiexec and all ranks


def _mpich(name: str, operation: str, **variables: object) -> Setting:
    prefix = f"MPIR_CVAR_{operation.upper()}_"
    return name, {prefix + key.upper(): str(value) for key, value in variables.items()}


def _chain(chunk: int) -> Setting:
    # A tree with one child per node is a chain, which MPICH never chooses itself.
    return _mpich(
        f"pipelined_tree, 1 child, {chunk >> 10} KiB",
        "bcast",
        intra_algorithm="pipelined_tree",
        tree_type="kary",
        tree_kval=1,
        tree_pipeline_chunk_size=chunk,
    )


def _openmpi(name: str, operation: str, number: int, segment: int = 0, sends: int = 0) -> Setting:
    prefix = f"OMPI_MCA_coll_tuned_{operation}_algorithm"
    variables = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", prefix: str(number)}
    if segment:
        variables[f"{prefix}_segmentsize"] = str(segment)
        name += f", {segment >> 10} KiB"
    if sends:
        # Send fragments of this size over sockets; the default is 128 KiB, and emulated RDMA.
        variables |= {"OMPI_MCA_btl_tcp_flags": "send"}
        variables |= {"OMPI_MCA_btl_tcp_max_send_size": str(sends)}
        name += f", {sends >> 10} KiB sends"
    return name, variables


_DEFAULT: Setting = ("default", {})

CANDIDATES: dict[str, dict[str, tuple[Setting, ...]]] = {
    "mpich": {
        "bcast": (
            _DEFAULT,
            _chain(64 << 10),
            _chain(256 << 10),
            _mpich("scatter_ring", "bcast", intra_algorithm="scatter_ring_allgather"),
        ),
        "allreduce": (
            _DEFAULT,
            _mpich("ring", "allreduce", intra_algorithm="ring"),
            _mpich("k_reduce_scatter", "allreduce", intra_algorithm="k_reduce_scatter_allgather"),
        ),
        "reduce_scatter": (
            _DEFAULT,
            _mpich("pairwise", "reduce_scatter_block", intra_algorithm="pairwise"),
            _mpich("halving", "reduce_scatter_block", intra_algorithm="recursive_halving"),
        ),
        "allgather": (
            _DEFAULT,
            _mpich("ring", "allgather", intra_algorithm="ring"),
            _mpich("recursive_doubling", "allgather", intra_algorithm="recursive_doubling"),
        ),
        "alltoall": (
            _DEFAULT,
            _mpich("pairwise", "alltoall", intra_algorithm="pairwise"),
            _mpich("scattered", "alltoall", intra_algorithm="scattered"),
        ),
    },
    "openmpi": {
        "bcast": (
            _DEFAULT,
            _openmpi("pipeline", "bcast", 3, 32 << 10),  # below the eager limit
            _openmpi("pipeline", "bcast", 3, 1 << 20),
            _openmpi("scatter_allgather_ring", "bcast", 9),
        ),
        "allreduce": (
            _DEFAULT,
            _openmpi("ring", "allreduce", 4),
            _openmpi("ring", "allreduce", 4, sends=256 << 10),
            _openmpi("segmented_ring", "allreduce", 5, 1 << 20),
        ),
        "reduce_scatter": (
            _DEFAULT,
            _openmpi("recursive_halving", "reduce_scatter_block", 3),
            _openmpi("butterfly", "reduce_scatter_block", 4),
        ),
        "allgather": (_DEFAULT, _openmpi("ring", "allgather", 4)),
        "alltoall": (
            _DEFAULT,
            _openmpi("linear", "alltoall", 1),
            _openmpi("linear", "alltoall", 1, sends=256 << 10),
            _openmpi("pairwise", "alltoall", 2),
        ),
    },
}

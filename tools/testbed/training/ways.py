"""The ways to reduce gradients that are compared."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to reduce gradients.

    Attributes:
      worker: "jaxccomp", "mpi" (one buffer, MPI's own allreduce), "torch" (DDP over gloo), "xla"
        (jit with shardings: XLA adds the reductions), or "alone" (no reduction: the time of
        computing).
      codec: jaxccomp: a codec spec; torch: a communication hook; xla: "gloo" or "mpi", which are
        JAX's own libraries, or the codec of large sums over `libjaxccomp_xla`.
      feedback: whether to use error feedback.
      bucket_bytes: bytes of gradients per call, last layers first; 0 for one call, and with torch
        for DDP's default.

    The others apply to jaxccomp only:
      algorithm: name of the algorithm.
      per_tensor: one call per tensor, one after the other; with "auto" each tensor is encoded as a
        whole and sent to all ranks, like systems that call a compressor and then a collective.
      broadcasts: reduce raw gradients to rank 0, which updates the parameters, and broadcast these
        with the codec and the algorithm.
      large: the codec of gradients of 1 MiB and more; smaller ones use ``codec``.
      transport: "mpi", or "ucx" under `jax.distributed`.
      warmup: number of warm-up steps of `jaxccomp.optim.dgc`, which includes the momentum and
        increases sparsity during the warm-up; 0: do not use dgc.
    """

    worker: str
    codec: str = "raw"
    feedback: bool = False
    bucket_bytes: int = 0
    algorithm: str = "auto"
    per_tensor: bool = False
    broadcasts: bool = False
    large: str = ""
    transport: str = "mpi"
    warmup: int = 0

    @property
    def name(self) -> str:
        """The name in results."""
        if self.worker == "alone":
            return "computing alone"
        parts = [self.worker, self.codec]
        if self.transport == "ucx":
            parts[0] += " over UCX"
        if self.large:
            parts.append(f"from 1 MiB {self.large}")
        if self.feedback:
            parts.append("feedback")
        if self.warmup:
            parts.append(f"momentum correction, warm-up of {self.warmup} steps")
        if self.per_tensor:
            parts.append("per tensor")
        elif self.broadcasts:
            parts.append("broadcast")
        elif self.worker == "jaxccomp" or self.bucket_bytes:
            parts.append(
                f"buckets of {self.bucket_bytes >> 10} KiB" if self.bucket_bytes else "whole"
            )
        if self.algorithm != "auto":
            parts.append(self.algorithm)
        return ", ".join(parts)


_BUCKET = 4 << 20
_ALGORITHMS = (
    ("bf16", False),
    ("int8", False),
    ("int4", True),
    ("onebit", True),
    ("topk:density=0.01", True),
    ("dgc:density=0.01", True),
    ("ternary:rounding=stochastic", False),
)

# The codec onebit written in JAX, without a native encoder (worker.py).
ONEBIT_IN_JAX = "onebit_in_jax"

# The libraries of JAX for collectives on CPUs.
OF_JAX = ("gloo", "mpi")

# PowerSGD of rank 1, torch's default: `powerSGD_hook`, and `jaxccomp.optim.powersgd`.
POWERSGD = "powersgd"

# The ablation of the HiPress paper: each row adds one optimisation to the row before.
ABLATION = (
    Way("jaxccomp", "raw", per_tensor=True, algorithm="ring"),
    Way("jaxccomp", ONEBIT_IN_JAX, True, per_tensor=True),
    Way("jaxccomp", "onebit", True, per_tensor=True),
    Way("jaxccomp", "onebit", True, per_tensor=True, algorithm="two_shot"),
    Way("jaxccomp", "onebit", True, bucket_bytes=_BUCKET),
    Way("jaxccomp", "onebit", True, bucket_bytes=_BUCKET, large="topk:density=0.01"),
)

WAYS = (
    Way("alone"),
    Way("mpi"),
    *(Way("torch", hook) for hook in ("raw", "fp16", "bf16", POWERSGD)),
    *(Way("torch", hook, bucket_bytes=_BUCKET) for hook in ("raw", "bf16")),
    Way("jaxccomp", "raw"),
    Way("jaxccomp", "raw", bucket_bytes=_BUCKET),
    Way("jaxccomp", "raw", algorithm="ring"),
    Way("jaxccomp", "raw", bucket_bytes=_BUCKET, algorithm="ring"),
    Way("jaxccomp", "lossless"),
    Way("jaxccomp", "lossless", bucket_bytes=_BUCKET),
    Way("jaxccomp", "lossless", algorithm="ring"),
    Way("jaxccomp", "bf16", algorithm="two_shot"),
    Way("jaxccomp", "bf16|lossless"),
    Way("jaxccomp", "bf16|lossless", bucket_bytes=_BUCKET),
    *(Way("jaxccomp", c, f, bucket_bytes=_BUCKET) for c, f in _ALGORITHMS),
    *(Way("jaxccomp", c, f, per_tensor=True) for c, f in _ALGORITHMS),
    *(
        Way("jaxccomp", codec, algorithm=algorithm, broadcasts=True)
        for codec, algorithm in (
            ("raw", "chain"),
            ("zfp:rate=16", "chain_recoded"),
            ("zfp:rate=16", "chain"),
            ("zfp:rate=8", "chain_recoded"),
            ("zfp:rate=8", "chain"),
            ("bf16", "chain"),
            ("int8", "chain"),
        )
    ),
)
WAYS += tuple(way for way in ABLATION if way not in WAYS)
WAYS += tuple(Way("xla", each) for each in (*OF_JAX, "raw", "lossless", "int8"))
WAYS += (
    Way("jaxccomp", "dgc:density=0.01", warmup=60),
    Way("jaxccomp", POWERSGD),
    Way("jaxccomp", "raw", bucket_bytes=_BUCKET, algorithm="ring", transport="ucx"),
    Way("jaxccomp", "bf16", bucket_bytes=_BUCKET, transport="ucx"),
    Way("jaxccomp", "bf16|lossless", transport="ucx"),
    Way("jaxccomp", "int4", True, bucket_bytes=_BUCKET, transport="ucx"),
    dataclasses.replace(ABLATION[-1], transport="ucx"),
)

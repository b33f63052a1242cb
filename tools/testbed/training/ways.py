"""The contenders: how gradients are reduced."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to reduce gradients.

    Attributes:
      worker: "jaxccomp", "mpi" (one buffer, MPI's own allreduce) or "torch" (DDP over gloo).
      codec: of jaxccomp, a spec; of torch, a communication hook.
      feedback: whether what is lost is added to the next gradients.
      bucket_bytes: of jaxccomp: gradients in calls of so many, last layers first; 0 for one call.
      algorithm: of jaxccomp.
      per_tensor: of jaxccomp: one call for each tensor, one after the other, each encoded whole and
        sent to all, as systems do that call a compressor and then a collective.
      broadcasts: of jaxccomp: gradients are reduced to rank 0, raw, which changes the parameters,
        and these are broadcast with the codec and the algorithm.
    """

    worker: str
    codec: str = "raw"
    feedback: bool = False
    bucket_bytes: int = 0
    algorithm: str = "auto"
    per_tensor: bool = False
    broadcasts: bool = False

    @property
    def name(self) -> str:
        """What it is called in results."""
        parts = [self.worker, self.codec]
        if self.feedback:
            parts.append("feedback")
        if self.per_tensor:
            parts.append("per tensor")
        elif self.broadcasts:
            parts.append("broadcast")
        elif self.worker == "jaxccomp":
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
    ("ternary:rounding=stochastic", True),
)

WAYS = (
    Way("mpi"),
    *(Way("torch", hook) for hook in ("raw", "fp16", "bf16")),
    Way("jaxccomp", "raw"),
    Way("jaxccomp", "raw", bucket_bytes=_BUCKET),
    Way("jaxccomp", "raw", algorithm="ring"),
    Way("jaxccomp", "raw", bucket_bytes=_BUCKET, algorithm="ring"),
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

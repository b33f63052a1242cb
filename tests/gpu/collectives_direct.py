"""A rank of collectives.py: messages that a CUDA-aware MPI takes from the GPU and puts there.

Each rank is as if on a host of its own. Results are compared as in collectives_compare.py, and the
bytes that went so are counted. Where MPI is not CUDA-aware, that is said and nothing is run.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import jax

os.environ.pop("JAXCCOMP_DEVICE_IPC_BYTES", None)  # device IPC within a host comes first

import jaxccomp as jcc
from jaxccomp._bootstrap import mpi, peer_info

_by = mpi.launcher()
peer_info._host_number = lambda: (_by.rank or 0) if _by else 0
compare = importlib.import_module("collectives_compare")  # joins

CODECS = (None, "lossless", "int8:block=256")
COUNT = 300_000
platform, way = sys.argv[1:]


def say(**row: object) -> None:
    if compare.RANK == 0:
        print(json.dumps({"ranks": compare.N, "way": way, **row}), flush=True)


def main() -> int:
    reasons = [
        reason for rank, reason in enumerate(jcc.comm.why_no_device_mpi()) if rank != compare.RANK
    ]
    if not reasons or any(reasons):
        why = next((reason for reason in reasons if reason), "one rank has nobody to send to")
        say(not_run="messages from and to the GPU by MPI", reason=why)
        return 0
    device, cpu = jax.local_devices(backend=platform)[0], jax.local_devices(backend="cpu")[0]
    failed = False
    for codec in CODECS:
        jcc.stats.reset()
        compared, wrong = compare.compare(codec, "float32", COUNT, device, cpu)
        total = jcc.stats.get().total
        moved = total.cuda_aware_sent_bytes and total.cuda_aware_received_bytes
        if wrong or not moved:
            row = {"rank": compare.RANK, "codec": codec, "different": wrong, "moved": moved}
            print(json.dumps(row), flush=True)
        say(
            codec=codec or "raw",
            compared=compared,
            sent_bytes=total.sent_bytes,
            cuda_aware_sent_bytes=total.cuda_aware_sent_bytes,
            cuda_aware_received_bytes=total.cuda_aware_received_bytes,
        )
        failed |= bool(wrong) or not moved
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

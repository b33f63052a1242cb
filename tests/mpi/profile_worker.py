"""Checks of profiles, run on every rank: `mpiexec -n N python profile_worker.py CASE FILE`."""

import json
import pathlib
import sys

from jaxccomp._bootstrap import mpi, peer_info
from jaxccomp.cli import main

RANK = mpi.launcher().rank


def on_hosts_of(ranks):
    """Ranks that lie side by side count as those of one host."""
    peer_info._host_number = lambda: RANK // ranks


def tuned(path):
    """What ranks of two hosts measure is a profile, which the first of them writes."""
    on_hosts_of(2)
    command = ["tune", "links", "--output", path, "--codecs", "lossless int8", "--within", "20"]
    assert main.main(command) == 0
    if RANK:
        return
    made = json.loads(pathlib.Path(path).read_text())
    (host,) = made["hosts"] if len(made["hosts"]) == 1 else (made["hosts"][0],)
    assert host["ranks"] == 2 and host["up_bytes_per_second"] > 1e6, made
    assert sum(each["count"] * each["ranks"] for each in made["hosts"]) == 4
    assert made["one_machine"] is True
    assert set(made["pairs"]) == {"host", "link"} and set(made["codecs"]) == {"lossless", "int8"}
    assert set(made["codecs"]["int8"]["dtypes"]) == {"bfloat16", "float32"}


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

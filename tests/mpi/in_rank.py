"""Runs pytest in one rank of a job: `python in_rank.py FOLDER PYTEST_ARGUMENT...`.

Stops at the first failure. The output of rank N goes to FOLDER/rank-N.txt: the mixed output of
several ranks is not readable.
"""

import os
import sys

RANK_VARIABLES = ("JAXCCOMP_TEST_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def main(folder: str, *arguments: str) -> int:
    rank = next(os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    log = os.open(f"{folder}/rank-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    import pytest  # after dup2: pytest keeps the streams at import

    return pytest.main(["-q", "-x", "-p", "no:cacheprovider", *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

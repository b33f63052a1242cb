"""Tests in `ranks` run in each process of an MPI job, which test_launch.py starts."""

import os

collect_ignore = [] if "JAXCCOMP_TEST_RANKS" in os.environ else ["ranks"]

"""The memory of failing operations over MPI and UCX; tests/stress/memory runs more cases."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from stress import survivors
from stress.memory import __main__ as memory

LIBRARY = os.environ.get("JAXCCOMP_MPI_TESTS", "")
FAULTS = ("deadline", "SIGINT", "peer killed", "peer stopped and continued", "peer error")
ROWS = (
    *("encode", "decode", "merge", "fill", "gather", "staging copy", "operand copy"),
    *("small send", "announced send", "send in flight"),
    *("announced receive", "receive in flight", "single-copy read"),
)
QUICK = dict(
    zip(
        memory.PLACES,
        ("send in flight", "announced send", "encode", "single-copy read"),
        strict=True,
    )
)


def cells(place):
    for row in ROWS:
        yield pytest.param(
            place, row, marks=() if row == QUICK[place] else pytest.mark.slow, id=f"{place}-{row}"
        )


@pytest.mark.skipif(
    not os.path.exists(LIBRARY), reason="JAXCCOMP_MPI_TESTS names no library (make test sets it)"
)
@pytest.mark.parametrize(("place", "row"), [each for p in memory.PLACES for each in cells(p)])
def test_failing_operations_neither_leak_nor_reuse_memory(place, row):
    if place.startswith("ucx") and "JAXCCOMP_LIBUCP" not in os.environ:
        pytest.skip("JAXCCOMP_LIBUCP is not set (make test sets it where UCX is needed)")
    faults = [
        fault
        for fault in FAULTS
        if not (place.startswith("mpi") and fault == "peer killed" and survivors.why_not())
    ]
    with ThreadPoolExecutor(len(faults)) as pool:  # the cells mostly wait
        counts = list(
            pool.map(lambda fault: memory.run_cell(LIBRARY, place, row, fault, runs=3), faults)
        )
    assert [count["runs"] for count in counts] == [3] * len(faults)
    assert [count["wrong"] for count in counts] == [0] * len(faults)

"""What every operation promises, as tables.

A row of `operations.OPERATIONS` is an operation with its definition in NumPy; a row of
`transforms.TRANSFORMS` is a context in which JAX may put it, with what must come out. The suites in
tests/spmd (forced host devices) and tests/mpi (processes) check rows of the one in rows of the
other (selection.py), so a new operation is one more row.

`JAXCCOMP_TEST_BACKEND` picks the backend of operations along an axis: "auto" (default), "native" or
"xla".
"""

from contract.batch import Batch
from contract.operations import OPERATIONS, Operation
from contract.places import AxisPlace, ProcessPlace
from contract.selection import contexts_at, pairwise, places_of, together
from contract.transforms import TRANSFORMS, Transform

__all__ = [
    "OPERATIONS",
    "TRANSFORMS",
    "AxisPlace",
    "Batch",
    "Operation",
    "ProcessPlace",
    "Transform",
    "contexts_at",
    "pairwise",
    "places_of",
    "together",
]

"""The contract of every operation, as tables.

A row of `operations.OPERATIONS` is an operation with its definition in NumPy. A row of
`transforms.TRANSFORMS` is a context of JAX, with the expected result. The suites in tests/spmd
(forced host devices) and tests/mpi (processes) test operations in contexts (selection.py), so a new
operation needs one new row.

`JAXCCOMP_TEST_BACKEND` selects the backend of operations along an axis: "auto" (default), "native"
or "xla".
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

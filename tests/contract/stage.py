"""The stage of GPUs (csrc/cuda/stage/), as tests on machines without a GPU have it."""

from jaxccomp import codecs

_SPECS = ("raw", "lossless")


def runs(codec: str, dtype: str) -> bool:
    """In place of `jaxccomp._native.cuda.runs`: of codecs with kernels the stage has "lossless"."""
    first = codecs.parse(codec).stages[0].name
    return codec in _SPECS or dtype not in codecs.table()[first].dtypes

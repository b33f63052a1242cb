"""The stage of GPUs (csrc/cuda/stage/), for tests on machines without a GPU."""

from jaxccomp import codecs

_SPECS = ("raw", "lossless")


def runs(codec: str, dtype: str) -> bool:
    """Replaces `jaxccomp._native.platforms.runs`: the only codec with kernels is "lossless"."""
    first = codecs.parse(codec).stages[0].name
    return codec in _SPECS or dtype not in codecs.table()[first].dtypes

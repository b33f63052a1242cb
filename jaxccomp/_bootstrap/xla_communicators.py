"""Whether NCCL's operations along mesh axes can run on XLA's own communicators, or why not."""

from __future__ import annotations

import jaxlib

from jaxccomp import config
from jaxccomp._native import engine

_FIRST = (0, 11)


def why_not_here() -> str:
    """Why XLA's communicators cannot be used in this process; empty when they can."""
    if not engine.available():
        return engine.why_missing()
    version = tuple(int(each) for each in jaxlib.__version__.split(".")[:2])
    if version < _FIRST:
        return f"jaxlib {jaxlib.__version__} gives none to others; 0.11 is the first that does"
    return engine.load().why_no_xla_library()


def asks() -> bool:
    """Whether this process has been told to use them, by the option nccl_communicator."""
    return config.get("nccl_communicator") == "xla"

"""Modules of this tree's package, for scripts that must do without JAX.

``import jaxccomp`` imports JAX, which only the ranks need that these scripts start, and which a
machine to be checked may lack. So they take single modules, as a rank's start-up does.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]


def module(name: str) -> types.ModuleType:
    """``jaxccomp.name``, without the package's own ``__init__`` unless that has run already."""
    if "jaxccomp" not in sys.modules:
        package = types.ModuleType("jaxccomp")
        package.__path__ = [str(ROOT / "jaxccomp")]
        sys.modules["jaxccomp"] = package
    return importlib.import_module(f"jaxccomp.{name}")

"""Imports single modules of this tree's package, for scripts that must not import JAX.

``import jaxccomp`` imports JAX. Only the ranks that these scripts start need it, and the machine
may lack it.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]


def module(name: str) -> types.ModuleType:
    """``jaxccomp.name``; does not run the package's ``__init__``."""
    if "jaxccomp" not in sys.modules:
        package = types.ModuleType("jaxccomp")
        package.__path__ = [str(ROOT / "jaxccomp")]
        sys.modules["jaxccomp"] = package
    return importlib.import_module(f"jaxccomp.{name}")

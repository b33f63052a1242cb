"""Finds the native engine, or says why it cannot be used.

All other modules get the extension from here, so that ``import jaxccomp`` works without it.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import threading
from importlib.machinery import PathFinder
from types import ModuleType

from jaxccomp import errors
from jaxccomp._native import libraries

_NAME = "jaxccomp._core"
_lock = threading.Lock()
_found: tuple[ModuleType | None, str] | None = None  # the module, or why it is missing


def _find() -> tuple[ModuleType | None, str]:
    global _found
    if _found is None:
        # Several threads may call first, and the extension must not be loaded twice.
        with _lock:
            if _found is None:
                _found = _load()
    return _found


def _load() -> tuple[ModuleType | None, str]:
    # Search the whole path: in the source folder, Python imports the source package, which has no
    # extension. The installed copy of the package has it.
    folders = [f"{folder or '.'}/jaxccomp" for folder in sys.path]
    spec = PathFinder.find_spec(_NAME, folders)
    if spec is None or spec.loader is None:
        return None, "there is no compiled jaxccomp/_core on Python's path"
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        return None, str(error)
    sys.modules[_NAME] = module
    errors.recent_errors = module.recent_errors
    for library, path in libraries.paths():
        module.add_library_path(library, path)
    return module, ""


# The library behind jax_cpu_collectives_implementation=mpi (_primitives/xla_collectives.py).
XLA_LIBRARY = "libjaxccomp_xla.so"
XLA_IMPLEMENTATION = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
XLA_MPI = "MPITRAMPOLINE_LIB"


def xla_variables() -> dict[str, str]:
    """The environment variables with which jaxlib loads the library of XLA's collectives.

    Raises:
      EngineUnavailableError: without the engine.
    """
    path = pathlib.Path(load().__file__ or "").with_name(XLA_LIBRARY)
    return {XLA_IMPLEMENTATION: "mpi", XLA_MPI: str(path)}


def available() -> bool:
    """Whether the extension can be loaded."""
    return _find()[0] is not None


def why_missing() -> str:
    """Why the extension cannot be loaded; empty if it can."""
    return _find()[1]


def load() -> ModuleType:
    """The extension ``jaxccomp._core``.

    Raises:
      EngineUnavailableError: with the reason and the remedy.
    """
    module, reason = _find()
    if module is None:
        raise errors.EngineUnavailableError(
            f"the native engine of jaxccomp is not installed ({reason}). Install the package "
            "with `pip install .` (a source folder alone has no compiled part), or use "
            'backend="xla", which needs nothing native.'
        )
    return module

"""Starts a module of the launcher: ``python -IS start.py MODULE ARGUMENT ...``.

It runs before a program and must not import JAX, which reads the environment: so it leaves
``jaxccomp/__init__.py`` out, and the module takes those of this package that it needs.
"""

import importlib
import pathlib
import sys
import types


def main() -> int:
    """Runs ``main`` of that module, which returns the exit status."""
    package = types.ModuleType("jaxccomp")
    package.__path__ = [str(pathlib.Path(__file__).resolve().parents[1])]
    sys.modules["jaxccomp"] = package
    module = importlib.import_module(f"jaxccomp.launch.{sys.argv[1]}")
    status: int = module.main(*sys.argv[2:])
    return status


if __name__ == "__main__":
    sys.exit(main())

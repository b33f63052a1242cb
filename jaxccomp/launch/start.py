"""Starts a module of the launcher: ``python -IS start.py MODULE ARGUMENT ...``.

It runs before the rank's program, and must not import JAX, which reads the environment. It
therefore does not run ``jaxccomp/__init__.py``.
"""

import importlib
import pathlib
import sys
import types


def main() -> int:
    """Run ``main`` of the module; return its exit status."""
    package = types.ModuleType("jaxccomp")
    package.__path__ = [str(pathlib.Path(__file__).resolve().parents[1])]
    sys.modules["jaxccomp"] = package
    module = importlib.import_module(f"jaxccomp.launch.{sys.argv[1]}")
    status: int = module.main(*sys.argv[2:])
    return status


if __name__ == "__main__":
    sys.exit(main())

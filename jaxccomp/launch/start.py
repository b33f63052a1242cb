"""The start-up of a rank: ``python -IS start.py LAUNCHER MARK SETTINGS PROGRAM ...``.

It runs before the program and must not import JAX, which reads the environment: so it takes the
modules of this package that it needs, and leaves ``jaxccomp/__init__.py`` out.
"""

import pathlib
import sys
import types


def main() -> int:
    """Runs the program as this rank."""
    package = types.ModuleType("jaxccomp")
    package.__path__ = [str(pathlib.Path(__file__).resolve().parents[1])]
    sys.modules["jaxccomp"] = package
    from jaxccomp.launch import supervise

    return supervise.main(*sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

"""Finds the shared libraries that some codecs use, where Python packages bring them.

The engine looks for libraries under their system names by itself; a library inside a wheel has a
name of its own.
"""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Iterator

# Library, the package that brings it, and the pattern of its file beside that package.
_IN_WHEELS = (("zfp", "zfpy", "zfpy.libs/libzfp*.so*"),)


def in_wheels() -> Iterator[tuple[str, str]]:
    """Names of libraries and the paths of their files."""
    for name, package, pattern in _IN_WHEELS:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        for path in sorted(pathlib.Path(spec.origin).parent.glob(pattern)):
            yield name, str(path)

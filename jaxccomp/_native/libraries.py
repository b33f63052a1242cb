"""Finds shared libraries for the engine in Python packages.

The engine itself looks for libraries under their system names; a library inside a wheel has another
name. ``JAXCCOMP_LIBNVCOMP=/path/to/libnvcomp.so.6`` (``JAXCCOMP_LIBZFP`` and so on) sets the file.
The GPU checks import this module alone, without the installed package.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
from collections.abc import Iterator

# Library, the package that contains it, and the pattern of its file beside that package.
# Among several rows of one library, the last row is tried first.
_IN_WHEELS = (
    ("zfp", "zfpy", "zfpy.libs/libzfp*.so*"),
    ("ucp", "libucx", "lib/libucp.so.0"),
    ("nvcomp", "nvidia", "libnvcomp/lib64/libnvcomp.so.6"),
    ("jaxccomp_cuda", "jaxccomp_cuda12", "libjaxccomp_cuda.so"),
    ("jaxccomp_cuda", "jaxccomp_cuda13", "libjaxccomp_cuda.so"),
)


def paths() -> Iterator[tuple[str, str]]:
    """Names of libraries and paths of their files. If a name has several paths, the last wins."""
    yield from _in_wheels()
    for name in dict.fromkeys(name for name, _, _ in _IN_WHEELS):
        if path := named(name):
            yield name, path


def named(name: str) -> str:
    """The file that the environment sets for a library; empty if it sets none."""
    return os.environ.get(f"JAXCCOMP_LIB{name.upper()}", "")


def find(name: str) -> str:
    """The file that is tried first for a library; empty if none is known."""
    return dict(paths()).get(name, "")


def _in_wheels() -> Iterator[tuple[str, str]]:
    for name, package, pattern in _IN_WHEELS:
        spec = importlib.util.find_spec(package)
        if spec is None:
            continue
        # `nvidia` is a namespace package: it has no file, and may have several folders.
        folders = (
            [pathlib.Path(spec.origin).parent]
            if spec.origin
            else map(pathlib.Path, spec.submodule_search_locations or ())
        )
        for path in (path for folder in folders for path in sorted(folder.glob(pattern))):
            yield name, str(path)

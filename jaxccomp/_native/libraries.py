"""Finds the shared libraries that the engine opens, where Python packages bring them.

The engine looks for libraries under their system names by itself; a library inside a wheel has a
name of its own. ``JAXCCOMP_LIBNVCOMP=/path/to/libnvcomp.so.6`` (``JAXCCOMP_LIBZFP`` and so on)
names another file. The checks on GPUs read this module alone: the package need not be installed.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
from collections.abc import Iterator

# Library, the package that brings it, and the pattern of its file beside that package.
# Of several with one name the last is tried first.
_IN_WHEELS = (
    ("zfp", "zfpy", "zfpy.libs/libzfp*.so*"),
    ("ucp", "libucx", "lib/libucp.so.0"),
    ("nvcomp", "nvidia", "libnvcomp/lib64/libnvcomp.so.6"),
    ("jaxccomp_cuda", "jaxccomp_cuda12", "libjaxccomp_cuda.so"),
    ("jaxccomp_cuda", "jaxccomp_cuda13", "libjaxccomp_cuda.so"),
)


def paths() -> Iterator[tuple[str, str]]:
    """Names of libraries and the paths of their files. Of those of a name the last comes first."""
    yield from _in_wheels()
    for name in dict.fromkeys(name for name, _, _ in _IN_WHEELS):
        if path := named(name):
            yield name, path


def named(name: str) -> str:
    """The file that the environment names for a library; empty where it names none."""
    return os.environ.get(f"JAXCCOMP_LIB{name.upper()}", "")


def find(name: str) -> str:
    """The file that is tried first for a library; empty where none is known."""
    return dict(paths()).get(name, "")


def _in_wheels() -> Iterator[tuple[str, str]]:
    for name, package, pattern in _IN_WHEELS:
        spec = importlib.util.find_spec(package)
        if spec is None:
            continue
        # NVIDIA's package has no file of its own, and lies in any number of folders.
        folders = (
            [pathlib.Path(spec.origin).parent]
            if spec.origin
            else map(pathlib.Path, spec.submodule_search_locations or ())
        )
        for path in (path for folder in folders for path in sorted(folder.glob(pattern))):
            yield name, str(path)

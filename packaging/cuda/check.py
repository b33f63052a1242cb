"""Checks a wheel with libjaxccomp_cuda.so: that it loads where there is no driver, and says so.

python packaging/cuda/check.py WHEEL
"""

from __future__ import annotations

import ctypes
import pathlib
import sys
import tempfile
import zipfile


def main(wheel: str) -> int:
    """Unpacks the wheel and opens its library."""
    path = pathlib.Path(wheel)
    distribution, version = path.name.split("-")[:2]
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as file:
        file.extractall(folder)
        found = [each for each in file.namelist() if each.endswith(".so")]
        expected = f"{distribution}/libjaxccomp_cuda.so"
        if found != [expected] or f"{distribution}/__init__.py" not in file.namelist():
            print(f"{path.name} has the libraries {found}, not just {expected}")
            return 1
        library = ctypes.CDLL(str(pathlib.Path(folder, expected)))
        library.jaxccomp_cuda_version.restype = ctypes.c_char_p
        says = library.jaxccomp_cuda_version().decode()
    if says != version:
        print(f"{path.name}: its library is of version {says}")
        return 1
    print(f"{path.name}: {path.stat().st_size >> 10} KiB, loads, version {says}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

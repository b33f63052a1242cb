"""Checks a wheel of libjaxccomp_cuda.so: its contents, its version, and loading without a driver.

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
        needed = f"{distribution}/libjaxccomp_cuda.so"
        package = f"{distribution}/__init__.py"
        if found != [needed] or package not in file.namelist():
            print(f"{path.name} has the libraries {found}, and should have {needed} alone")
            return 1
        say = ctypes.CDLL(str(pathlib.Path(folder, needed))).jaxccomp_cuda_version
        say.restype = ctypes.c_char_p
        if (says := say().decode()) != version:
            print(f"{path.name}: {needed} is of version {says}")
            return 1
    print(f"{path.name}: {path.stat().st_size >> 10} KiB, {needed} loads, version {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

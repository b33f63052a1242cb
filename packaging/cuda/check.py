"""Checks a wheel with libjaxccomp_cuda.so: that its libraries load where there is no driver.

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
        # That for XLA's communicators takes headers that not every build has.
        known = {f"{distribution}/libjaxccomp_{name}.so": name for name in ("cuda", "xla")}
        needed = f"{distribution}/libjaxccomp_cuda.so"
        package = f"{distribution}/__init__.py"
        if needed not in found or set(found) - set(known) or package not in file.namelist():
            print(f"{path.name} has the libraries {found}, and should have {sorted(known)}")
            return 1
        for name in found:
            says = version_of(pathlib.Path(folder, name), f"jaxccomp_{known[name]}_version")
            if says != version:
                print(f"{path.name}: {name} is of version {says}")
                return 1
    print(f"{path.name}: {path.stat().st_size >> 10} KiB, {found}, load, version {version}")
    return 0


def version_of(path: pathlib.Path, function: str) -> str:
    """What a library says of itself."""
    say = getattr(ctypes.CDLL(str(path)), function)
    say.restype = ctypes.c_char_p
    return say().decode()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

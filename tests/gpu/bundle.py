"""Bundles the files for checks on a GPU machine without a network (`make gpu-bundle`).

    python tests/gpu/bundle.py FOLDER BUILD_FOLDER WHEEL_OR_MODULE [--most-mib 64] [--no-nvcomp]

FOLDER gets a zip file with the CUDA library and its test program from BUILD_FOLDER and the engine's
Python module, wheels of an MPI and nvCOMP from PyPI for Python 3.12 on x86-64, and `env.sh`, to be
sourced on the other machine. Exits with 1 if the folder and the tracked files together exceed the
limit.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

import sources

BUILT = ("libjaxccomp_cuda.so", "jaxccomp_gpu_tests")
PACKED = "built.zip"
WHEELS = ("mpich>=4.3,<6", "mpi4py>=4.1,<5")
NVCOMP = "nvidia-libnvcomp-cu13>=6,<7"
_PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_5")

# unpack.py unpacks the wheels: `pip install --target` loses the libraries of the MPI.
ENV = """\
# Source this in a shell on the machine with the GPU: `. build/gpu/env.sh`.
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
site=$bundle/site
[ -e "$site/done" ] || {
  python3 -m zipfile -e "$bundle/built.zip" "$bundle" &&
    chmod +x "$bundle/jaxccomp_gpu_tests" &&
    python3 "$bundle/unpack.py" "$site" "$bundle"/wheels/*.whl
} || return 1
export PATH="$site/bin:$PATH"
export PYTHONPATH="$site/packages${PYTHONPATH:+:$PYTHONPATH}"
export LD_LIBRARY_PATH="$bundle:$site/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONUNBUFFERED=1
"""


def gather(folder: pathlib.Path, build: pathlib.Path, module: pathlib.Path) -> None:
    """Packs the built files; device code shrinks several times."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (
        zipfile.ZipFile(folder / PACKED, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed,
        tempfile.TemporaryDirectory() as stripped,
    ):
        for name in BUILT:
            to = pathlib.Path(stripped, name)
            subprocess.run(
                ["strip", "--strip-unneeded", "-o", str(to), str(build / name)], check=True
            )
            packed.write(to, name)
        for name, data in _modules(module).items():
            packed.writestr(f"module/jaxccomp/{name}", data)
    shutil.copy2(pathlib.Path(__file__).with_name("unpack.py"), folder / "unpack.py")
    (folder / "env.sh").write_text(ENV, encoding="utf-8")


def _modules(module: pathlib.Path) -> dict[str, bytes]:
    """The engine's module for Python 3.12, by file name, from a wheel or a .so file."""
    if module.suffix == ".whl":
        with zipfile.ZipFile(module) as wheel:
            names = [each for each in wheel.namelist() if each.startswith("jaxccomp/_core")]
            found = {pathlib.Path(name).name: wheel.read(name) for name in names}
    else:
        found = {module.name: module.read_bytes()}
    if not any("cpython-312" in name for name in found):
        raise SystemExit(f"{module} has no jaxccomp/_core for Python 3.12")
    return found


def download(folder: pathlib.Path, packages: list[str]) -> None:
    """Downloads wheels for Python 3.12, with any Python."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
    command += ["--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", "3.12", "-d", str(folder)]
    for platform in _PLATFORMS:
        command += ["--platform", f"manylinux_{platform}_x86_64"]
    for platform in ("manylinux2014", "manylinux1"):
        command += ["--platform", f"{platform}_x86_64"]
    subprocess.run([*command, *packages], check=True)


def tracked_bytes() -> int:
    """The size of all tracked files of this tree."""
    listed = subprocess.run(
        ["git", "-C", str(sources.ROOT), "ls-files", "-z"], capture_output=True, check=True
    ).stdout
    paths = [sources.ROOT / each.decode() for each in listed.split(b"\0") if each]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> int:
    """Makes the folder, and prints the sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("module", type=pathlib.Path, help="a wheel of jaxccomp, or its _core*.so")
    parser.add_argument("--most-mib", type=float, default=64.0, help="default: %(default)s")
    parser.add_argument("--no-nvcomp", action="store_true", help="leave its 28 MiB out")
    asked = parser.parse_args()
    gather(asked.folder, asked.build, asked.module)
    download(asked.folder / "wheels", [*WHEELS, *([] if asked.no_nvcomp else [NVCOMP])])
    files = sorted(path for path in asked.folder.rglob("*") if path.is_file())
    sizes = {str(path.relative_to(asked.folder)): path.stat().st_size for path in files}
    sizes["tracked files"] = tracked_bytes()
    for name, size in sizes.items():
        print(f"{size / 2**20:8.2f} MiB  {name}")
    total = sum(sizes.values()) / 2**20
    print(f"{total:8.2f} MiB  in all, of {asked.max_mib:g}")
    if total > asked.max_mib:
        print("too large: leave nvCOMP out (--no-nvcomp), and take it along in a second bundle")
    return int(total > asked.max_mib)


if __name__ == "__main__":
    sys.exit(main())

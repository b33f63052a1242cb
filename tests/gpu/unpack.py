"""Unpacks wheels without pip: `python unpack.py FOLDER WHEEL...`.

Packages go to FOLDER/packages, and data files of wheels to FOLDER/bin and FOLDER/lib.
"""

from __future__ import annotations

import pathlib
import shutil
import sys
import zipfile


def unpack(folder: pathlib.Path, wheel: pathlib.Path) -> None:
    """Unpacks a wheel; keeps executable bits."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            parts = pathlib.PurePosixPath(info.filename).parts
            if ".." in parts or info.filename.startswith("/"):
                raise SystemExit(f"{wheel} has a file outside of itself: {info.filename}")
            if parts[0].endswith(".data"):
                inner = parts[2:]
                to = folder if parts[1] == "data" else folder / "packages"
            else:
                inner, to = parts, folder / "packages"
            path = to.joinpath(*inner)
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = info.external_attr >> 16
            if mode & 0o170000 == 0o120000:  # a symbolic link
                path.unlink(missing_ok=True)
                path.symlink_to(archive.read(info).decode())
                continue
            with archive.open(info) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
            if mode & 0o111 or to.joinpath("bin") == path.parent:
                path.chmod(0o755)


def main(folder: str, *wheels: str) -> None:
    """Unpacks all wheels, then creates the file `done`."""
    for wheel in wheels:
        unpack(pathlib.Path(folder), pathlib.Path(wheel))
    pathlib.Path(folder, "done").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])

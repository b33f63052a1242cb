"""Prints the requirements in pyproject.toml: `python packaging/requirements.py [EXTRA]...`.

These are the dependencies of the package and of the extras; the extra "build" stands for the build
requirements. The Makefile installs them before it compiles, and not again when only sources change.
"""

import pathlib
import re
import sys
import tomllib

PROJECT = tomllib.loads(pathlib.Path(__file__).parents[1].joinpath("pyproject.toml").read_text())


def requirements(extra: str) -> list[str]:
    """The requirements of an extra, which may name others ("jaxccomp[optim,zfp]")."""
    if extra == "build":
        return PROJECT["build-system"]["requires"]
    found = []
    for each in PROJECT["project"]["optional-dependencies"][extra]:
        own = re.fullmatch(r"jaxccomp\[(.*)\]", each)
        names = own[1].split(",") if own else []
        found += [every for name in names for every in requirements(name.strip())] or [each]
    return found


if __name__ == "__main__":
    extras = [each for extra in sys.argv[1:] for each in requirements(extra)]
    print(*sorted({*PROJECT["project"]["dependencies"], *extras}), sep="\n")

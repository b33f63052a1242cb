"""Prints what pip installs besides this package: `python packaging/requirements.py [EXTRA]...`.

They are the dependencies in pyproject.toml, and those of the extras; the extra "build" stands for
what a build requires. pip installs them before anything is compiled, and not again when only
sources have changed.
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

"""The Python programs of the documentation: README.md and docs/*.md.

A block of Python that begins with an import begins a program; the blocks after it on the page
continue it. A comment before its first block says how it runs; without one, on two ranks::

    <!-- run: ranks=2, then ranks=3 -->

"ranks=N" starts N processes by mpiexec, "devices=N" one process with N devices, "testbed" one
process beside tools/testbed. The comment may instead give the path of a test that runs the program.
The first line of a notebook's cell, such as `%%writefile train.py`, is no part of the program.
"""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATHS = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
LANGUAGES = {"console", "json", "python", "sh", "text", "toml", "{toctree}"}

_FENCE = re.compile(
    r"^(?:<!-- run: (?P<ways>.*?) -->\n)?(?P<indent> *)```(?P<language>\S*)\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of a page, the number of its blocks, and how it runs, in this order."""

    path: str
    code: str
    blocks: int = 1
    ways: tuple[str, ...] = ("ranks=2",)


def languages(path):
    """Return the language of each fenced block of a page."""
    return [found["language"] for found in _FENCE.finditer((ROOT / path).read_text("utf-8"))]


def programs(path):
    """Return the programs of a page."""
    found = []
    for block in _FENCE.finditer((ROOT / path).read_text("utf-8")):
        if block["language"] != "python":
            continue
        ways = tuple(block["ways"].split(", then ")) if block["ways"] else ("ranks=2",)
        code = re.sub(r"\A%%.*\n", "", block["code"])
        if re.match(r"import |from ", code) or block["ways"] or not found:
            found.append(Program(path, code, 1, ways))
        else:
            last = found.pop()
            code = f"{last.code}\n{code}"
            found.append(dataclasses.replace(last, code=code, blocks=last.blocks + 1))
    return found

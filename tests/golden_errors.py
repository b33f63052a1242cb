"""Assertions on errors and reports: a test names the facts, one file keeps the texts.

    with raises(errors.UnknownNameError, "int9", "'int8'"):
        ...

The test fails unless the error is of this type and its text holds each fact: a name that the user
gave, an allowed value, a number, an API name. tests/golden/errors.txt keeps the full text, and the
test fails if it differs. After a change of wording, `pytest --update-golden` writes the new texts
of the tests that pass; review the diff of that one file.

`golden=False` leaves out a text that depends on the JAX, the MPI, the platform or the timing.
Programs under mpiexec check facts only.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import functools
import os
import pathlib
import re
from collections.abc import Container, Iterator, Mapping

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "golden" / "errors.txt"
HEADER = (
    "# Texts of errors and reports, by test (tests/golden_errors.py).\n"
    "# After a change of wording: pytest --update-golden\n"
)

# Parts of a text that differ between machines and runs.
REPLACED = (
    (re.compile(re.escape(str(ROOT))), "<root>"),
    (re.compile(r"[^\s'\"(=:]*/pytest-of-[^/\s]+/pytest-\d+/[^/\s'\":;,)]+"), "<tmp>"),
    (re.compile(r"(?<=\.py:)\d+"), "<line>"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d+"), "<port>"),
    (re.compile(r"(?<=_FD=)\d+"), "<descriptor>"),
    # The process counts its Publishers and Subscribers.
    (re.compile(r"(?<=/sync-)\d+"), "<number>"),
    (re.compile(r"(?<=\bat )0x[0-9a-f]+"), "<address>"),
    (re.compile(r"(?<=/)tmp[a-z0-9_]{8}\b"), "<name>"),
    (re.compile(r"(?<=\bjaxccomp )\d+\.\d+\.\d+\w*"), "<version>"),
    (re.compile(r"\b\w*Tracer[(<][^)>]*[)>]"), "<tracer>"),
    (re.compile(r"(?<=JAX says: ).*", re.DOTALL), "<JAX>"),
)

Texts = dict[str, list[str]]

# The different texts that the running test has checked so far, in this order.
_checked: list[str] = []


@contextlib.contextmanager
def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    *facts: object,
    golden: bool = True,
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """`pytest.raises`, and checks the facts and the text of the error.

    A fact is a text, a number, or a tuple of facts.
    """
    with pytest.raises(kind) as caught:
        yield caught
    _check(str(caught.value), facts, f"{type(caught.value).__name__}: ", golden)


def check_text(text: str, *facts: object, golden: bool = True) -> None:
    """Checks the facts and the text of a report."""
    _check(text, facts, "", golden)


def _check(text: str, facts: tuple[object, ...], title: str, golden: bool) -> None:
    absent = [fact for fact in _flat(facts) if not has_fact(text, fact)]
    assert not absent, f"{absent} not in {title}{text!r}"
    text = normalized(title + text)
    if golden and text not in _checked:
        _checked.append(text)


def _flat(facts: tuple[object, ...]) -> Iterator[object]:
    for fact in facts:
        if isinstance(fact, tuple):
            yield from _flat(fact)
        else:
            yield fact


def has_fact(text: str, fact: object) -> bool:
    """Whether the text holds this fact as whole words; `1` is not a part of `10`."""
    fact = str(fact)
    before = r"(?<!\w)" if fact[0].isalnum() else ""
    after = r"(?!\w)" if fact[-1].isalnum() else ""
    return re.search(before + re.escape(fact) + after, text) is not None


def normalized(text: str) -> str:
    """The text without parts that differ between machines and runs."""
    for pattern, name in REPLACED:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def begin() -> None:
    """Starts a test."""
    _checked.clear()


def compare(test: str) -> None:
    """Raises unless the file has the texts that the test has checked."""
    found, golden = list(_checked), _entries().get(test, [])
    if found == golden or "JAXCCOMP_TEST_RANKS" in os.environ:
        return
    diff = difflib.unified_diff(
        write({test: golden}).splitlines(),
        write({test: found}).splitlines(),
        "tests/golden/errors.txt",
        "this test",
        lineterm="",
        n=100,
    )
    pytest.fail(
        "\n".join(diff) + "\nIf this wording is intended: pytest --update-golden",
        pytrace=False,
    )


def take() -> list[str]:
    """The texts of the test that has ended, for `update`."""
    return list(_checked)


def update(new: Mapping[str, list[str]], dropped: Container[str] = ()) -> None:
    """Replaces entries of the file; other processes may do the same at the same time."""
    with open(FILE, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        entries = read(file.read()) | dict(new)
        kept = {
            test: texts
            for test, texts in entries.items()
            if texts and test not in dropped and (ROOT / test.partition("::")[0]).exists()
        }
        file.seek(0)
        file.truncate()
        file.write(HEADER + write(kept))


def stale(collected: Container[str], files: Container[str]) -> set[str]:
    """The tests of the file that pytest has not found in these test files."""
    return {
        test for test in _entries() if test.partition("::")[0] in files and test not in collected
    }


@functools.cache
def _entries() -> Texts:
    return read(FILE.read_text(encoding="utf-8"))


def read(text: str) -> Texts:
    """Parses the file: names of tests, and below each its texts, indented."""
    found: Texts = {}
    texts: list[str] = []
    for line in text.splitlines():
        if line.startswith("  * "):
            texts.append(line[4:])
        elif line.startswith("  | ") or line == "  |":
            texts[-1] += "\n" + line[4:]
        elif line and not line.startswith("#"):
            texts = found.setdefault(line, [])
    return found


def write(entries: Mapping[str, list[str]]) -> str:
    """The reverse of `read`, sorted by test."""
    lines = []
    for test, texts in sorted(entries.items()):
        lines += ["", test]
        for text in texts:
            first, *others = text.split("\n")
            lines += [f"  * {first}", *(f"  | {line}".rstrip() for line in others)]
    return "\n".join(lines) + "\n"

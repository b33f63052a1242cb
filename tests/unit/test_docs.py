"""Examples and tables of the documentation match the program."""

import doctest
import importlib
import importlib.util
import pathlib
import re
import shlex
import sys

import pytest
from testbed import __main__ as command_line
from testbed import overview

import jaxccomp
from jaxccomp._codecs import frames, specs, table
from jaxccomp._native import terminal
from jaxccomp.cli import doctor

ROOT = pathlib.Path(__file__).parents[2]


def between(path, command):
    """Return the part of a page that `command` must print."""
    text = (ROOT / path).read_text(encoding="utf-8")
    begin = f"<!-- {command} -->\n"
    assert begin in text
    return text.partition(begin)[2].partition("<!-- end -->")[0]


def test_the_table_of_codecs():
    shown = between("docs/codecs.md", "python -m jaxccomp doctor --codecs")
    assert shown == doctor.codec_table()


TABLES = [
    (module, arguments, shown)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for module, arguments, shown in re.findall(
        r"<!-- python -m (\S+) (--table .*?) -->\n(.*?)<!-- end -->",
        path.read_text(encoding="utf-8"),
        re.DOTALL,
    )
]


def test_tables_are_found():
    assert len(TABLES) > 20


@pytest.mark.parametrize(("module", "arguments", "shown"), TABLES)
def test_tables_show_what_was_measured(module, arguments, shown, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "exit_on_signals", lambda: None)
    monkeypatch.setattr(sys, "argv", [module, *shlex.split(arguments)])
    monkeypatch.chdir(ROOT)
    spec = importlib.util.find_spec(module)
    name = f"{module}.__main__" if spec.submodule_search_locations else module
    assert importlib.import_module(name).main() == 0
    assert shown == capsys.readouterr().out and shown.count("\n") > 2


def test_picture_of_the_readme_shows_what_was_measured():
    picture = (ROOT / "docs/results/overview.svg").read_text(encoding="utf-8")
    for seconds in overview.rows(ROOT / "docs/results"):
        for label, each in seconds.items():
            assert f">{label}<" in picture and f">{each:.3f} s<" in picture


@pytest.mark.parametrize("module", [frames, specs, terminal], ids=lambda m: m.__name__)
def test_examples_in_docstrings(module, monkeypatch):
    monkeypatch.setattr(table.CODECS, "_entries", {})  # an example registers a codec
    failed, tried = doctest.testmod(module)
    assert tried and not failed


@pytest.mark.parametrize(
    "shown", [jaxccomp.stats.log, jaxccomp.trace.merge], ids=lambda f: f.__module__
)
def test_examples_that_run_operations(shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they write files
    (example,) = doctest.DocTestFinder().find(shown, globs={"jaxccomp": jaxccomp})
    failed, tried = doctest.DocTestRunner().run(example)
    assert tried and not failed


def test_what_to_open_is_there():
    """Checks the table at the end of docs/architecture.md."""
    table = (ROOT / "docs/architecture.md").read_text().partition("## To change something")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert 15 <= len(rows) <= 20
    for row in rows:
        paths = [each for each in re.findall(r"`([^` ]+)`", row.split("|")[2]) if "/" in each]
        assert paths or "Makefile" in row, row
        for path in paths:
            assert (ROOT / path).exists(), path


GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")


def test_each_term_is_in_the_glossary_once():
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (.+) \|$", GLOSSARY, re.MULTILINE)[1:]
    terms = [row[0] for row in rows]
    assert len(terms) > 30
    assert sorted(terms, key=str.lower) == terms
    assert len(set(terms)) == len(terms)
    for _, _, where in rows:
        for path in re.findall(r"`([^`]+)`", where):
            assert (ROOT / path).exists(), path
        for path in re.findall(r"\]\(([^)]+)\)", where):
            assert (ROOT / "docs" / path).exists(), path


def test_the_citation_and_the_extras_have_the_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {jaxccomp.__version__}\n" in citation
    extras = (ROOT / "pyproject.toml").read_text()
    assert set(re.findall(r"jaxccomp-cuda\d+==([^\"]+)", extras)) == {jaxccomp.__version__}


def test_public_names_have_docstrings():
    assert set(jaxccomp.ops.__all__) <= set(jaxccomp.__all__)
    for name in jaxccomp.__all__:
        value = getattr(jaxccomp, name)
        assert not callable(value) or value.__doc__, name

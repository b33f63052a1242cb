"""Examples and tables of the documentation match the program."""

import ast
import doctest
import html
import importlib
import importlib.util
import pathlib
import re
import shlex
import subprocess
import sys

import pages
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


def test_codec_table_of_the_page_matches_doctor():
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


def test_pages_contain_more_than_20_generated_tables():
    assert len(TABLES) > 20


@pytest.mark.parametrize(("module", "arguments", "shown"), TABLES)
def test_generated_tables_match_the_results_files(module, arguments, shown, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "exit_on_signals", lambda: None)
    monkeypatch.setattr(sys, "argv", [module, *shlex.split(arguments)])
    monkeypatch.chdir(ROOT)
    spec = importlib.util.find_spec(module)
    name = f"{module}.__main__" if spec.submodule_search_locations else module
    assert importlib.import_module(name).main() == 0
    assert shown == capsys.readouterr().out and shown.count("\n") > 2


def test_pictures_match_the_results_files():
    for name, panels in overview.pictures(ROOT / "docs/results").items():
        picture = (ROOT / "docs/results" / name).read_text(encoding="utf-8")
        for label, each in (row for seconds in panels.values() for row in seconds.items()):
            text = html.escape(label, quote=False)
            assert f">{text}<" in picture and f">{each:.3f} s<" in picture


@pytest.mark.parametrize("module", [frames, specs, terminal], ids=lambda m: m.__name__)
def test_docstring_examples_run(module, monkeypatch):
    monkeypatch.setattr(table.CODECS, "_entries", {})  # an example registers a codec
    failed, tried = doctest.testmod(module)
    assert tried and not failed


@pytest.mark.parametrize(
    "shown", [jaxccomp.stats.log, jaxccomp.trace.merge], ids=lambda f: f.__module__
)
def test_docstring_examples_with_operations_run(shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they write files
    (example,) = doctest.DocTestFinder().find(shown, globs={"jaxccomp": jaxccomp})
    failed, tried = doctest.DocTestRunner().run(example)
    assert tried and not failed


def test_paths_in_the_table_of_what_to_open_exist():
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


def test_citation_and_cuda_extras_have_the_package_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {jaxccomp.__version__}\n" in citation
    extras = (ROOT / "pyproject.toml").read_text()
    assert set(re.findall(r"jaxccomp-cuda\d+==([^\"]+)", extras)) == {jaxccomp.__version__}


def test_public_names_have_docstrings():
    assert set(jaxccomp.ops.__all__) <= set(jaxccomp.__all__)
    for name in jaxccomp.__all__:
        value = getattr(jaxccomp, name)
        assert not callable(value) or value.__doc__, name


@pytest.mark.parametrize("path", pages.PATHS)
def test_code_blocks_name_a_language_and_python_blocks_parse(path):
    """tests/mpi/test_pages.py runs the Python blocks; every other block must name its language."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = pages.languages(path)
    assert len(found) == text.count("\n```") / 2
    assert set(found) <= pages.LANGUAGES, path
    for program in pages.programs(path):
        ast.parse(program.code)


NAME = re.compile(r"\b(?:jcc|jaxccomp)\.([A-Za-z]\w*(?:\.[A-Za-z]\w*)*)(?![\w/-])")
# Modules that are run, groups of entry points, and files.
NO_NAMES = {
    *("algorithms", "backends", "bench", "cli", "codecs.tensors", "compat", "rst"),
    "trace.merged",
}


@pytest.mark.parametrize("path", pages.PATHS)
def test_names_used_in_documentation_exist(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    for name in sorted(set(NAME.findall(text))):
        value = jaxccomp
        for part in name.split("."):
            if {name, name.split(".")[0]} & NO_NAMES or isinstance(value, type):
                break  # the fields of instances are no attributes of their class
            value = getattr(value, part)


INDEX = (ROOT / "docs/index.md").read_text(encoding="utf-8")


def test_each_page_is_in_the_index_once():
    listed = re.findall(r"^(?:[^<\n]*<)?([a-z_/A-Z0-9]+)>?$", INDEX, re.MULTILINE)
    there = [path.removeprefix("docs/").removesuffix(".md") for path in pages.PATHS[1:]]
    assert sorted(set(there) - {"index"} - set(listed)) == []
    assert len(set(listed)) == len(listed)


def test_each_public_name_is_in_the_reference(tmp_path, monkeypatch):
    """docs/conf.py writes the pages of the reference, which name each public name once."""
    spec = importlib.util.spec_from_file_location("conf", ROOT / "docs/conf.py")
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    monkeypatch.setattr(conf, "HERE", tmp_path)
    conf.write_api()
    modules = {"jaxccomp": jaxccomp}
    modules |= {name: importlib.import_module(f"jaxccomp.{name}") for name in conf.MODULES}
    assert {name for name in jaxccomp.__all__ if name in modules} == set(conf.MODULES) - {"comm"}
    for page, module in modules.items():
        text = (tmp_path / "api" / f"{page}.rst").read_text(encoding="utf-8")
        documented = re.findall(r"^\.\. auto(?:class|exception|function|data):: (\w+)$", text, re.M)
        assert len(set(documented)) == len(documented)
        names = getattr(module, "__all__", documented)
        assert set(documented) == {name for name in names if name not in conf.MODULES}
        assert documented, page


def anchors(path):
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("path", [*pages.PATHS, "docs/results/README.md"])
def test_links_lead_to_files_and_headings(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        if name.startswith(("http", "api/")):
            continue  # docs/conf.py writes the pages of the API
        target = (ROOT / path).parent / name if name else ROOT / path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_debugging_page_quotes_texts_of_the_program():
    """The first column of its table quotes parts of error texts."""
    sources = [*(ROOT / "jaxccomp").rglob("*.py"), *(ROOT / "csrc").rglob("*.[ch]*")]
    sources += (ROOT / "xla_ffi").rglob("*.cc")
    texts = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    texts = re.sub(r'"\s*f?"', "", texts)  # adjacent literals are one text
    page = (ROOT / "docs/debugging.md").read_text(encoding="utf-8").partition("\n## ")[0]
    phrases = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| ([^|]+) \|", page, re.M)))
    parts = [part.strip() for phrase in phrases for part in phrase.split("...")]
    parts = [part for part in parts if not re.search(r"\d|=", part)]
    assert len(parts) >= 7
    for part in parts:
        assert part in texts, part


@pytest.mark.slow
def test_site_is_built_without_warnings(tmp_path):
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name, reason="needs the extra 'docs'")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", ROOT / "docs", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

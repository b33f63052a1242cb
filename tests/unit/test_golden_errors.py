"""Assertions on errors and their texts (tests/golden_errors.py)."""

import os
import subprocess
import sys

import golden_errors
import patience
import pytest


@pytest.fixture
def file(tmp_path, monkeypatch):
    """An empty file of texts instead of tests/golden/errors.txt."""
    path = tmp_path / "errors.txt"
    path.touch()
    monkeypatch.setattr(golden_errors, "FILE", path)
    monkeypatch.setattr(golden_errors, "ROOT", tmp_path)
    (tmp_path / "test_a.py").touch()
    golden_errors._entries.cache_clear()
    yield path
    golden_errors._entries.cache_clear()


def test_raises_requires_the_type_and_each_fact(file):
    with golden_errors.raises(ValueError, "int9", 10, "codec=", golden=False):
        raise ValueError("codec='int9' takes 10 bits")
    for fact in ("int8", "int", 1, "ef="):
        with pytest.raises(AssertionError, match="not in ValueError"):
            with golden_errors.raises(ValueError, fact):
                raise ValueError("codec='int9' takes 10 bits")
    with pytest.raises(KeyError), golden_errors.raises(ValueError):
        raise KeyError("int9")


def test_compare_fails_for_changed_added_and_missing_texts(file):
    golden_errors.update({"test_a.py::one": ["ValueError: old", "ValueError: same"]})
    for texts in (["new", "same"], ["old", "same", "more"], ["old"], []):
        golden_errors.begin()
        for text in texts:
            with golden_errors.raises(ValueError):
                raise ValueError(text)
        with pytest.raises(pytest.fail.Exception, match="--update-golden"):
            golden_errors.compare("test_a.py::one")
    golden_errors.begin()
    for text in ("old", "same"):
        with golden_errors.raises(ValueError):
            raise ValueError(text)
    golden_errors.compare("test_a.py::one")
    golden_errors.begin()  # pytest compares none of these


def test_texts_with_golden_false_are_not_compared(file):
    golden_errors.begin()
    with golden_errors.raises(ValueError, golden=False):
        raise ValueError("JAX 0.11 says so")
    golden_errors.compare("test_a.py::one")


def test_update_keeps_entries_of_other_tests_and_drops_entries_without_a_test(file):
    golden_errors.update({"test_a.py::one": ["1"], "test_a.py::two": ["2"], "gone.py::x": ["3"]})
    golden_errors.update({"test_a.py::two": [], "test_a.py::three": ["a\n\n  b", "c"]})
    found = golden_errors.read(file.read_text())
    assert found == {"test_a.py::one": ["1"], "test_a.py::three": ["a\n\n  b", "c"]}
    golden_errors.update({}, golden_errors.stale({"test_a.py::three"}, {"test_a.py"}))
    assert list(golden_errors.read(file.read_text())) == ["test_a.py::three"]


def test_machine_dependent_parts_are_replaced(tmp_path):
    text = f"{tmp_path}/a.json, {golden_errors.ROOT}/x.py:12: 127.0.0.1:4711 <f at 0x7f12>"
    replaced = "<tmp>/a.json, <root>/x.py:<line>: 127.0.0.1:<port> <f at <address>>"
    assert golden_errors.normalized(text) == replaced


def test_each_golden_text_belongs_to_a_collected_test():
    files = {test.partition("::")[0] for test in golden_errors._entries()}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "--collect-only", "-q", *sorted(files)],
        cwd=golden_errors.ROOT,
        env=os.environ | {"JAXCCOMP_TEST_SLOW": "also"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=patience.seconds(60),
    )
    found = set(done.stdout.splitlines())
    assert not golden_errors.stale(found, files), "pytest --update-golden drops these"

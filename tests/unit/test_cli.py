import pytest

from jaxccomp import _engine, errors
from jaxccomp.cli import main


def test_info_shows_all_sections(capsys):
    assert main.main(["info"]) == 0
    out = capsys.readouterr().out
    for word in ("versions", "engine", "MPI", "codecs", "options", "JAXCCOMP_BACKEND"):
        assert word in out


def test_info_gives_reasons_for_what_is_missing(monkeypatch, capsys):
    from jaxccomp.cli import info

    monkeypatch.setattr(_engine, "_find", lambda: (None, "no such file"))
    monkeypatch.setattr(info._mpi, "installed", lambda: False)
    assert main.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "missing: no such file" in out
    assert "pip install 'jaxccomp[mpich]'" in out


def test_the_engine_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(_engine, "_find", lambda: (None, "no such file"))
    with pytest.raises(errors.EngineUnavailableError, match=r'no such file.*backend="xla"'):
        _engine.load()


def test_unknown_commands(capsys):
    with pytest.raises(SystemExit):
        main.main(["infos"])
    assert "invalid choice" in capsys.readouterr().err

"""Options: defaults, conversion, errors, listeners."""

import pytest
from golden_errors import raises

from jaxccomp import config, errors


def test_every_option_has_a_valid_default_and_a_meaning():
    for option in config.options():
        assert option.parse(option.default) == option.default
        assert option.doc.endswith(".")
        assert option.variable == "JAXCCOMP_" + option.name.upper()


@pytest.mark.parametrize("text,value", [("1", True), ("on", True), ("False", False), ("no", False)])
def test_booleans_are_read_from_words(text, value):
    with config.override(retain_memory=text):
        assert config.get("retain_memory") is value


def test_override_restores_the_previous_value():
    before = config.get("timeout_seconds")
    with config.override(timeout_seconds="2.5"):
        assert config.get("timeout_seconds") == 2.5
    assert config.get("timeout_seconds") == before


@pytest.mark.parametrize(
    "name,value,facts",
    [
        ("chunk_byte", 1, ("'chunk_byte'", "'chunk_bytes'")),
        ("mpi", "sometimes", ("'mpi'", "'sometimes'", "'always', 'auto', 'never'")),
        ("chunk_bytes", "many", ("'chunk_bytes'", "int")),
        ("chunk_bytes", 1.5, ("'chunk_bytes'", "int")),
        ("chunk_bytes", 1, ("'chunk_bytes'", "64", "1")),
        ("retain_memory", "perhaps", ("'retain_memory'", "'true'", "'off'", "'perhaps'")),
        ("device_part_bytes", 4095, ("'device_part_bytes'", "4096", "4095")),
    ],
)
def test_invalid_values_raise_errors_that_name_allowed_values(name, value, facts):
    with raises(errors.InvalidArgumentError, facts):
        config.set(name, value)


def test_engine_options_reach_a_listener(monkeypatch):
    told = []
    monkeypatch.setattr(config, "_listeners", [])
    config.on_change(lambda option, value: told.append((option.name, option.text(value))))
    assert ("retain_memory", "1") in told
    assert all(name != "backend" for name, _ in told)
    with config.override(retain_memory=False):
        assert told[-1] == ("retain_memory", "0")


def test_value_is_unchanged_if_a_listener_raises(monkeypatch):
    def refuse(option, value):
        raise ValueError("no")

    before = config.get("chunk_bytes")
    monkeypatch.setattr(config, "_listeners", [refuse])
    with pytest.raises(ValueError):
        config.set("chunk_bytes", 4096)
    assert config.get("chunk_bytes") == before

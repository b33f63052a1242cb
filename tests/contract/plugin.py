"""Simulates the installation of a third-party package (tests/plugin)."""

import functools
import pathlib
import sys

from jaxccomp._codecs import specs
from jaxccomp._native import registry

FOLDER = pathlib.Path(__file__).parents[1] / "plugin"


def install(monkeypatch) -> None:
    """Installs the package until the test ends, without importing or registering anything."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in [name for name in sys.modules if name.partition(".")[0] == "jaxccomp_plugin"]:
        monkeypatch.delitem(sys.modules, name)
    for each in registry.Registry.all:
        monkeypatch.setattr(each, "_outcomes", {})
        monkeypatch.setattr(each, "_entries", {})
    monkeypatch.setattr(registry, "_points", functools.cache(registry._points.__wrapped__))
    specs._parse_text.cache_clear()

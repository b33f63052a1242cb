"""A package of somebody else's (tests/plugin), as if it had been installed."""

import pathlib
import sys

from jaxccomp._codecs import custom, specs
from jaxccomp._native import algorithms, entry_points
from jaxccomp._primitives import backends

FOLDER = pathlib.Path(__file__).parents[1] / "plugin"


def install(monkeypatch) -> None:
    """Until the test ends; nothing of it has been imported, and nothing is registered."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in [name for name in sys.modules if name.partition(".")[0] == "jaxccomp_plugin"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(entry_points, "_outcomes", {})
    monkeypatch.setattr(algorithms, "_ALGORITHMS", {})
    monkeypatch.setattr(custom, "_CODECS", {})
    monkeypatch.setattr(backends, "_BACKENDS", {})
    entry_points._points.cache_clear()
    specs._parse_text.cache_clear()

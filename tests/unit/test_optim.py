"""What `jaxccomp.optim` is without its optional dependency."""

import subprocess
import sys

import pytest

import jaxccomp as jcc


def test_without_optax_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ImportError, match="pip install optax") as caught:
        jcc.optim.allreduce_gradients()
    assert isinstance(caught.value, jcc.errors.MissingPackageError)


def test_optax_is_loaded_only_when_it_is_used():
    program = "import sys, jaxccomp; sys.exit('optax' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", program]).returncode == 0

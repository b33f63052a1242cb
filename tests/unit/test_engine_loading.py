"""The native engine is loaded once, even if several threads first need it at the same time."""

import subprocess
import sys

import pytest

from jaxccomp._native import engine

_THREADS = """
import sys, threading
from jaxccomp._native import engine
sys.setswitchinterval(1e-6)
barrier, found = threading.Barrier(8), []
def load():
    barrier.wait()
    found.append(engine.load().describe is not None and id(engine.load()))
threads = [threading.Thread(target=load) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 8 and len(set(found)) == 1, found
"""


@pytest.mark.skipif(not engine.available(), reason="the engine is not installed")
def test_engine_is_loaded_once_by_concurrent_threads():
    done = subprocess.run([sys.executable, "-P", "-c", _THREADS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

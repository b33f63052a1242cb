"""Keeps the ranks of a job together: a test that fails on one rank fails on all.

All ranks thus stop at the same test, and none waits for a rank that has left.
"""

import contextlib
import os

import jax
import pytest
from contract import meeting
from jax._src import dispatch

_ranks = meeting.ranks()


def pytest_collection_finish(session):
    found = _ranks.allgather((len(session.items), session.testsfailed))
    if len(set(found)) > 1 or session.testsfailed:
        pytest.exit(f"ranks found different tests, or errors (tests, errors): {found}", 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        failed = _ranks.allgather(report.failed)
        if any(failed) and not report.failed:
            ranks = [rank for rank, each in enumerate(failed) if each]
            report.outcome = "failed"
            report.longrepr = f"failed on ranks {ranks}, not on this one"
    return report


@pytest.fixture(autouse=True)
def failures_stay_in_their_test():
    """Clear JAX's tokens: after a failed ordered operation the next one would raise again."""
    yield
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()
    dispatch.runtime_tokens.clear()


@pytest.fixture(scope="session")
def world():
    import jaxccomp as jcc

    world = jcc.init()
    assert world.size == int(os.environ["JAXCCOMP_TEST_RANKS"])
    assert world.rank == _ranks.rank
    return world


@pytest.fixture(scope="session")
def ranks():
    """Exchanges of test data that do not use the code under test."""
    return _ranks

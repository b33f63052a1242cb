"""Errors suggest the name that the caller meant."""

import pytest

from jaxccomp import errors

OPS = ("sum", "mean", "prod", "min", "max", "and", "or", "xor")


@pytest.mark.parametrize(
    ("kind", "given", "valid", "meant"),
    [
        ("op", "avg", OPS, "mean"),
        ("op", "SUM", OPS, "sum"),
        ("op", "maxx", OPS, "max"),
        ("codec", "fp8", ("fp8_e4m3", "fp8_e5m2", "zfp"), "fp8_e4m3"),
        ("codec", "none", ("onebit", "raw"), "raw"),
        ("backend", "nccl", ("auto", "mpi", "native", "xla"), "xla"),
    ],
)
def test_unknown_names_suggest_the_intended_name(kind, given, valid, meant):
    assert f"Did you mean {meant!r}?" in str(errors.unknown(kind, given, valid))


def test_mpi4py_operations_suggest_the_name_of_the_op():
    MPI = pytest.importorskip("mpi4py.MPI")
    for given, meant in ((MPI.SUM, "sum"), (MPI.MAX, "max"), (MPI.LAND, "and")):
        assert f"Did you mean {meant!r}?" in str(errors.unknown("op", given, OPS))


def test_unknown_names_without_a_similar_name_get_no_suggestion():
    assert "Did you mean" not in str(errors.unknown("op", "gradient", OPS))
    assert "Did you mean" not in str(errors.unknown("op", "nccl", OPS))


TEXT = "allreduce(sum, float32[4]) at train.py:41: rank 1 of 'world' is missing"


@pytest.fixture
def recent(monkeypatch):
    monkeypatch.setattr(errors, "recent_errors", lambda: [TEXT, "bcast(int8[3]): another"])


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_errors_of_finds_the_failed_operation_in_exceptions_of_other_classes(recent, kind):
    exception = kind(f"DEADLINE_EXCEEDED: {TEXT}\nmore of XLA's text")
    found = errors.of(exception)
    assert isinstance(found, errors.CollectiveError) and isinstance(found, RuntimeError)
    assert (found.code, found.where) == ("DEADLINE_EXCEEDED", "train.py:41")
    assert found.operation == "allreduce(sum, float32[4])"
    assert str(found) == TEXT and found.__cause__ is exception
    assert errors.of(found) is found


def test_errors_of_follows_causes_and_contexts(recent):
    try:
        try:
            raise ValueError(f"ABORTED: {TEXT}")
        except ValueError as cause:
            raise KeyError("state") from cause
    except KeyError as exception:
        found = errors.of(exception)
    assert found is not None and found.code == "ABORTED"
    loop = KeyError("a")
    loop.__context__ = LookupError("b")
    loop.__context__.__context__ = loop
    assert errors.of(loop) is None


def test_errors_of_ignores_exceptions_without_an_operation(recent):
    assert errors.of(ValueError("rank 1 is missing")) is None
    assert errors.of(errors.InvalidArgumentError("bcast: root")) is None
    assert errors.of(None) is None


def test_operation_failed_error_is_an_alias_from_version_0_1():
    with pytest.warns(DeprecationWarning, match="CollectiveError"):
        assert errors.OperationFailedError is errors.CollectiveError

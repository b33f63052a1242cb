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
def test_names_of_other_libraries_and_misspelt_names(kind, given, valid, meant):
    assert f"Did you mean {meant!r}?" in str(errors.unknown(kind, given, valid))


def test_operations_of_mpi():
    MPI = pytest.importorskip("mpi4py.MPI")
    for given, meant in ((MPI.SUM, "sum"), (MPI.MAX, "max"), (MPI.LAND, "and")):
        assert f"Did you mean {meant!r}?" in str(errors.unknown("op", given, OPS))


def test_no_suggestion_where_nothing_is_like_it():
    assert "Did you mean" not in str(errors.unknown("op", "gradient", OPS))
    assert "Did you mean" not in str(errors.unknown("op", "nccl", OPS))

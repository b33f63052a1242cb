"""Codec specs, and properties of codecs."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises

from jaxccomp import codecs, errors
from jaxccomp._codecs import specs, table
from jaxccomp._native import engine


@pytest.mark.parametrize("spec", [None, "raw", "auto", " raw ", codecs.RAW, "raw|raw"])
def test_specs_without_compression_equal_raw(spec):
    assert codecs.canonical(spec) == "raw"
    assert codecs.is_raw(spec)


@pytest.mark.parametrize(
    "spec,text",
    [
        ("bf16", "bf16"),
        ("raw|bf16", "bf16"),
        ("int8:rounding=stochastic,block=64", "int8:block=64,rounding=stochastic"),
        (" int8 : block = 64 | lossless ", "int8:block=64|lossless"),
        ("int8:block=32", "int8"),
        ("topk:density=0.0500", "topk:density=0.05"),
    ],
)
def test_canonical_returns_the_shortest_equivalent_spec(spec, text):
    assert codecs.canonical(spec) == text
    assert codecs.canonical(text) == text


def test_specs_and_strings_are_equal():
    spec = codecs.stage("int8", block=64) | codecs.LOSSLESS
    assert codecs.parse(spec) == codecs.parse("int8:block=64|lossless")
    assert hash(codecs.parse(spec)) == hash(codecs.parse("int8:block=64|lossless"))
    assert not codecs.is_raw(spec)
    assert codecs.canonical(codecs.stage("randomk", unbiased=True)) == "randomk:unbiased=true"


@pytest.mark.parametrize(
    "spec,facts",
    [
        ("int7", ("'int7'", "'auto'", "'bf16'", "'int8'")),
        ("int8:blok=32", ("'blok'", "'block'", "'rounding'", "'int8'")),
        ("bf16:block=2", ("'bf16'", "'block'", "'rounding'")),
        ("fp16:block=2", ("'fp16'", "'block'", "(none)")),
        ("int8:block", ("key=value", "'block")),
        ("int8:block=", ("key=value", "'block")),
        ("int8:", ("key=value", "'int8:'")),
        ("int8:block=32,block=64", ("'int8:block=32,block=64'", "key 'block'")),
        ("int8:block=33", ("block=33", "'32', '64', '128', '256'")),
        ("topk:density=2", ("density=2", "1e-06", "1")),
        ("topk:density=nan", ("density=nan", "1e-06", "1")),
        ("zstd:level=1.5", ("level=1.5", "1", "19")),
        ("lossless|int8", ("'lossless|int8'", "'int8'", "stage")),
        ("bf16|lossless|zstd", ("'bf16|lossless|zstd'", "stages")),
        ("bf16|", "unknown codec ''"),
        ("", "unknown codec ''"),
        ("auto|bf16", ("'auto|bf16'", '"auto:int8"')),
        (8, ("codec", "None", "8")),
    ],
)
def test_invalid_specs_raise_errors_that_list_valid_ones(spec, facts):
    with raises(errors.InvalidArgumentError, facts):
        codecs.parse(spec)


def test_options_keep_their_names_of_version_0_1():
    option = next(each for each in codecs.table()["zstd"].options if each.name == "level")
    with pytest.warns(DeprecationWarning, match="minimum"):
        assert option.least == option.minimum
    with pytest.warns(DeprecationWarning, match="maximum"):
        assert option.most == option.maximum


def test_every_codec_has_a_description_and_valid_option_defaults():
    for name, info in codecs.table().items():
        assert info.name == name and info.description and info.ratio and info.dtypes
        assert info.lossless == (not info.error)
        for option in info.options:
            assert option.description
            if option.choices:
                assert option.default in option.choices
            elif option.default:
                assert option.minimum <= float(option.default) <= option.maximum


def test_codec_without_its_library_raises_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr(
        specs, "table", lambda: {"zfp": codecs.CodecInfo("zfp", "x", missing="no libzfp")}
    )

    class Engine:
        @staticmethod
        def describe_codec(text):
            raise RuntimeError("codec 'zfp' is not available here: no libzfp")

    monkeypatch.setattr(engine, "load", lambda: Engine)
    specs._parse_text.cache_clear()
    with raises(errors.EngineUnavailableError, "'zfp'", "no libzfp"):
        codecs.parse("zfp")
    specs._parse_text.cache_clear()


@pytest.mark.parametrize("name", sorted(n for n in codecs.table() if not n.startswith("nvcomp.")))
def test_test_environment_has_all_codec_libraries(name):
    # The test and demo environments install all libraries of CPU codecs.
    assert not codecs.table()[name].missing


def test_error_bound_returns_the_bound_of_codec_and_dtype():
    assert codecs.error_bound("lossless", "bfloat16") == codecs.ErrorBound(
        0, 0, 0, 0, math.inf, True
    )
    bound = codecs.error_bound("bf16", np.float32)
    assert bound.relative == 2.0**-8 and bound.block == 0 and bound.keeps_nonfinite
    stochastic = codecs.error_bound("bf16:rounding=stochastic", np.float32)
    assert stochastic.relative == 2.0**-7 and stochastic.range == math.inf
    assert codecs.error_bound("int8:block=64|lossless", jnp.float32).block_values == 64
    with raises(errors.InvalidArgumentError, "'bf16'", "'int32'", "'float32', 'float64'"):
        codecs.error_bound("bf16", "int32")


def test_codec_table_without_the_engine_is_a_subset_of_the_engines_table():
    for name, info in table.TABLE.items():
        known = codecs.table()[name]
        assert info == (dataclasses.replace(known, dtypes=()) if info.lossless else known)


def test_xla_backend_has_its_codecs_without_the_engine(monkeypatch):
    monkeypatch.setattr(engine, "available", lambda: False)

    def load():
        raise errors.EngineUnavailableError("not here")

    monkeypatch.setattr(engine, "load", load)
    table.own_table.cache_clear()
    specs._parse_text.cache_clear()
    try:
        assert codecs.canonical("raw|bf16") == "bf16"
        for spec, text in {
            " int8 : block = 64 | lossless ": "int8:block=64|lossless",
            "int8:rounding=stochastic,block=64": "int8:block=64,rounding=stochastic",
            "int8:block=32": "int8",
            "topk:density=0.0500": "topk:density=0.05",
            "raw|tbq:threshold=1": "tbq:threshold=1",
        }.items():
            assert codecs.canonical(spec) == text
            assert codecs.canonical(text) == text
        for spec, facts in {
            "dgc": ("'dgc'", "'auto', 'bf16'"),
            "int8:blok=32": ("'blok'", "'block'", "'rounding'", "'int8'"),
            "int8:block=33": ("block=33", "'32', '64', '128', '256'"),
            "topk:density=2": ("density=2", "1e-06", "1"),
            "topk:density=nan": ("density=nan", "1e-06", "1"),
            "lossless|int8": ("'lossless|int8'", "'int8'", "stage"),
            "bf16|lossless|lossless": ("'bf16|lossless|lossless'", "stages"),
        }.items():
            with raises(errors.InvalidArgumentError, facts):
                codecs.parse(spec)
    finally:
        table.own_table.cache_clear()
        specs._parse_text.cache_clear()

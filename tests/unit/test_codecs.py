import pytest

from jaxccomp import codecs, errors


@pytest.fixture
def table(monkeypatch):
    """A richer table than this build's, to exercise the grammar."""
    rows = [
        codecs.CodecInfo("raw", "as is", lossless=True),
        codecs.CodecInfo("bf16", "rounded"),
        codecs.CodecInfo("int8", "blocks", keys=("block", "mode")),
        codecs.CodecInfo("lossless", "exact", lossless=True, fixed_rate=False),
    ]
    monkeypatch.setattr(codecs, "table", lambda: {row.name: row for row in rows})
    codecs._parse_text.cache_clear()
    yield
    codecs._parse_text.cache_clear()


@pytest.mark.parametrize("spec", [None, "raw", "auto", " raw ", codecs.RAW, "raw|raw"])
def test_what_sends_values_as_they_are(spec):
    assert codecs.canonical(spec) == "raw"
    assert codecs.is_raw(spec)


@pytest.mark.parametrize(
    "spec,text",
    [
        ("bf16", "bf16"),
        ("raw|bf16", "bf16"),
        ("int8:mode=up,block=32", "int8:block=32,mode=up"),
        (" int8 : block = 32 | lossless ", "int8:block=32|lossless"),
    ],
)
def test_canonical_text(table, spec, text):
    assert codecs.canonical(spec) == text
    assert codecs.canonical(text) == text


def test_specs_and_strings_are_equal(table):
    spec = codecs.stage("int8", block=32) | codecs.stage("lossless")
    assert codecs.parse(spec) == codecs.parse("int8:block=32|lossless")
    assert hash(codecs.parse(spec)) == hash(codecs.parse("int8:block=32|lossless"))
    assert not codecs.is_raw(spec)


@pytest.mark.parametrize(
    "spec,says",
    [
        ("int7", "valid: 'auto', 'bf16', 'int8', 'lossless', 'raw'. Did you mean 'int8'"),
        ("int8:blok=32", "valid: 'block', 'mode'. Did you mean 'block'"),
        ("bf16:block=2", r"valid: \(none\)"),
        ("int8:block", "is not key=value"),
        ("int8:block=", "is not key=value"),
        ("int8:", "is not key=value"),
        ("int8:block=1,block=2", "given twice"),
        ("lossless|int8", "'int8' is lossy and can only be the first stage"),
        ("bf16|", "unknown codec ''"),
        ("", "unknown codec ''"),
        ("auto|bf16", "stands alone"),
        (8, "None, a string or a codec spec, not 8"),
    ],
)
def test_bad_specs_say_what_is_valid(table, spec, says):
    with pytest.raises(errors.InvalidArgumentError, match=says):
        codecs.parse(spec)


def test_the_static_table_has_the_foundation():
    assert {"raw", "bf16"} <= set(codecs.table())
    assert codecs.table()["raw"].lossless

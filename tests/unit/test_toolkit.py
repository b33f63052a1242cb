"""`jaxccomp.toolkit`: rejected codecs, findings of `check`, and the operators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import own_codec
from golden_errors import raises

import jaxccomp as jcc
from jaxccomp import codecs, errors, toolkit
from jaxccomp._codecs import table


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Each test registers its own codecs, invisible to other tests."""
    monkeypatch.setattr(table.CODECS, "_entries", {})
    own_codec.register()


def plain(x, options, key):
    return (x,)


def unplain(payload, shape, dtype, options):
    return payload[0]


def register(name, encode=plain, decode=unplain, options=None, **attributes):
    made = type(f"Codec_{name}", (), {"encode": encode, "decode": decode, **attributes})
    return jcc.register_codec(name, **(options or {}))(made)


def test_specs_accept_a_user_defined_codec():
    assert codecs.canonical("test_scaled:levels=5,block=64 | lossless") == (
        "test_scaled:levels=5|lossless"
    )
    row = codecs.table()["test_scaled"]
    assert row.description.startswith("Blocks of 4-bit")
    assert [option.name for option in row.options] == ["block", "levels"]
    with raises(errors.UnknownNameError, "'test_scaled'", "'level'", "'levels'"):
        codecs.parse("test_scaled:level=5")
    with raises(errors.InvalidArgumentError, "'test_scaled'", "block=6.5", "int", "64"):
        codecs.parse("test_scaled:block=6.5")
    with raises(errors.InvalidArgumentError, "'bf16|test_scaled'", "'test_scaled'", "stage"):
        codecs.parse("bf16|test_scaled")
    with raises(errors.InvalidArgumentError, "'test_scaled'", "own_codec.Scaled", "bound"):
        codecs.error_bound("test_scaled", "float32")
    with raises(errors.InvalidArgumentError, "'test_scaled'", "own_codec.Scaled", "frame"):
        codecs.encode("test_scaled", np.zeros(4, np.float32))


def test_invalid_and_taken_codec_names_are_refused():
    with raises(errors.NameTakenError, "'int8'", "this package", "Codec_int8"):
        register("int8")
    with raises(errors.NameTakenError, "'Int-8'", "a-z"):
        register("Int-8")
    with raises(
        errors.NameTakenError, "'test_scaled'", "contract.own_codec.Scaled", "Codec_test_scaled"
    ):
        register("test_scaled")


def test_codec_can_be_redefined_as_in_a_notebook():
    register("test_again", lambda x, options, key: (x * options.by,), options={"by": 2})
    first = jax.jit(lambda v: codecs.canonical("test_again:by=3") and v)(jnp.ones(3))
    register("test_again", lambda x, options, key: (x * options.by,), options={"by": 3})
    assert codecs.canonical("test_again:by=3") == "test_again"
    assert first.shape == (3,)


def test_register_refuses_invalid_functions_and_options():
    with raises(errors.CodecError, "'test_none'", "decode(payload, shape, dtype, options)"):
        register("test_none", decode=None)
    with raises(errors.CodecError, "'test_few'", "encode(x, options, key)", "encode(x)"):
        register("test_few", encode=lambda x: x)
    with raises(errors.CodecError, "'kind'", "number", "bool", "'a'"):
        register("test_text", options={"kind": "a"})


# Mistakes, and the facts that `check` names.
BAD = {
    "size": (lambda x, options, key: (x[x > 0],), ("shape", "toolkit.filter_top", "size=")),
    "static": (lambda x, options, key: (x, 3), ("3 (int)", "jnp.asarray")),
    "bits": (lambda x, options, key: (x.astype(jnp.int4),), ("int4", "toolkit.pack")),
    "key": (lambda x, options, key: (x, jax.random.key(0)), ("key<fry>", "jax.random.key_data")),
    "dtype": (
        lambda x, options, key: (x.astype(jnp.bfloat16),),
        ("decode", "float32[]", "bfloat16[]", "dtype="),
    ),
    "zeros": (lambda x, options, key: (x + 1,), ("zeros", "1.0")),
    "nan": (lambda x, options, key: (jnp.nan_to_num(x),), ("nan", "0.0", "infinity")),
    "contraction": (lambda x, options, key: (3 * x,), ("4", "contraction", "unbiased")),
}


@pytest.mark.parametrize(
    "encode",
    [
        lambda x, options, key: (jnp.ravel(x)[: jnp.count_nonzero(x)],),
        lambda x, options, key: (jnp.zeros(jnp.count_nonzero(x)),),
        lambda x, options, key: (jnp.nonzero(jnp.ravel(x))[0],),
    ],
    ids=["slice", "zeros", "nonzero"],
)
def test_value_dependent_encoded_size_raises_while_tracing(encode):
    register("test_sized", encode)
    with raises(errors.CodecError, "'test_sized'", "encode", "toolkit.filter_top", "size="):
        toolkit.check("test_sized")


def test_other_errors_in_encode_are_raised_by_jax():
    register("test_wrong", lambda x, options, key: (jnp.ravel(x)[0, 0],))
    with raises(IndexError, "Too many indices", golden=False):
        toolkit.check("test_wrong")


@pytest.mark.parametrize("case", BAD)
def test_check_raises_an_error_that_names_the_codecs_fault(case):
    encode, facts = BAD[case]
    name = f"test_bad_{case}"
    register(name, encode)
    with raises(errors.CodecError, name, facts):
        toolkit.check(name)


def test_check_detects_encoders_with_hidden_state():
    calls = iter(range(100))
    register("test_counting", lambda x, options, key: (x, jnp.ones(()) * next(calls)))
    with raises(errors.CodecError, "'test_counting'", "float32", "other rows"):
        toolkit.check("test_counting")


def test_check_reports_ratio_exactness_and_contraction():
    report = toolkit.check("test_scaled")
    assert report.unbiased and not report.exact
    assert 7.0 < report.ratio < 7.2
    assert report.contraction > 0.9
    register("test_exact", lossless=True)
    assert toolkit.check("test_exact", "bfloat16").exact
    with raises(errors.CodecError, "'test_scaled'", "int32"):
        toolkit.check("test_scaled", "int32")


@pytest.mark.slow
def test_check_detects_unbiased_codecs():
    assert toolkit.check("randomk:unbiased=true,density=0.1").unbiased
    assert not toolkit.check("randomk:density=0.1").unbiased


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 7, 64, 1000])
def test_unpack_inverts_pack(bits, count):
    codes = jnp.asarray(np.random.default_rng(0).integers(0, 2**bits, count))
    packed = toolkit.pack(codes, bits, 64)
    assert packed.size <= -(-count // 64) * 8 * bits
    assert (toolkit.unpack(packed, bits, count, 64) == codes).all()


def test_pack_refuses_unsupported_bit_widths():
    with raises(errors.InvalidArgumentError, "bits=3", "1, 2, 4 or 8"):
        toolkit.pack(jnp.zeros(8, jnp.int32), 3)
    with raises(errors.InvalidArgumentError, "bits=2", "blocks of 6", "8 / bits"):
        toolkit.unpack(jnp.zeros(8, jnp.uint8), 2, 8, 6)


def test_scatter_restores_values_of_filter_top_and_filter_where():
    x = jnp.asarray(np.random.default_rng(1).standard_normal((10, 20)), jnp.float32)
    values, places = toolkit.filter_top(x, 17)
    assert sorted(np.abs(values)) == sorted(np.sort(np.abs(x).ravel())[-17:])
    back = toolkit.scatter(values, places, x.shape)
    assert int((back != 0).sum()) == 17
    assert bool(((back == x) | (back == 0)).all())
    values, places = toolkit.filter_where(x > 1, x, 100)
    assert (toolkit.scatter(values, places, x.shape) == jnp.where(x > 1, x, 0)).all()
    assert toolkit.filter_where(x > 1, x, 3)[0].tolist() == x.ravel()[x.ravel() > 1][:3].tolist()

"""`jaxccomp.optim` without its optional dependency, and its checks of arguments."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from golden_errors import raises

import jaxccomp as jcc
from jaxccomp import optim
from jaxccomp._native import engine


def test_missing_optax_raises_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    with raises(ImportError, "jaxccomp.optim", "pip install optax", "'jaxccomp[optim]'") as caught:
        jcc.optim.allreduce_gradients()
    assert isinstance(caught.value, jcc.errors.MissingPackageError)


def test_import_of_jaxccomp_does_not_import_optax():
    program = "import sys, jaxccomp; sys.exit('optax' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", program]).returncode == 0


def make_train_step(**options):
    return optim.train_step(lambda params: params, None, **options)


MAKERS = {
    "allreduce_gradients": optim.allreduce_gradients,
    "with_feedback": functools.partial(optim.allreduce_gradients, error_feedback=True),
    "train_step": make_train_step,
    "powersgd": optim.powersgd,
    "dgc": optim.dgc,
    "ecq": optim.ecq,
    "adacomp": optim.adacomp,
    "onebit_adam": functools.partial(optim.onebit_adam, 1e-3, 10),
    "diloco": optim.diloco,
    "local_sgd": optim.local_sgd,
}
MISTAKES = [
    ({"codecs": "int8"}, ("allreduce", "'codecs'", "'codec'")),
    ({"axis": "data"}, ("allreduce", "'axis'", "'axis_name'")),
    ({"backend": "navite"}, ("'navite'", "'native'")),
    ({"cotangent_codec": "int7"}, ("'int7'", "'int8'")),
]
if engine.available():
    MISTAKES += [
        ({"algorithm": "rign"}, ("allreduce", "'rign'", "'ring'")),
        ({"algorithm": "ring:chunk=x"}, ("allreduce", "ring:chunk=x", "64")),
    ]


@pytest.mark.parametrize(("options", "facts"), MISTAKES, ids=lambda each: str(each)[:30])
@pytest.mark.parametrize("maker", MAKERS)
def test_invalid_options_raise_when_the_transformation_is_created(maker, options, facts):
    with raises(jcc.errors.InvalidArgumentError, facts):
        MAKERS[maker](**options)


def test_codec_passed_as_op_raises_an_error_that_suggests_codec_keyword():
    """The reduction is the first argument; the codec is a keyword."""
    for spec in ("int8", "topk:density=0.01", "bf16|lossless"):
        for make in (optim.allreduce_gradients, MAKERS["with_feedback"]):
            with raises(
                jcc.errors.UnknownNameError, "allreduce", f"{spec!r}; ", "'and'", f"codec={spec!r}"
            ):
                make(spec)
    with raises(jcc.errors.UnknownNameError, "allreduce", "'maen'", "'mean'"):
        optim.allreduce_gradients("maen")


def test_only_sums_have_error_feedback():
    facts = ("allreduce_gradients", "error_feedback=True", "'max'", "'mean', 'sum'")
    with raises(jcc.errors.UnknownNameError, facts):
        optim.allreduce_gradients(op="max", codec="int8", error_feedback=True)


def test_unknown_keyword_of_an_operation_raises_and_suggests_a_name():
    x = jnp.ones(3)
    with raises(jcc.errors.UnknownNameError, "allreduce", "'codecs'", "'codec'"):
        jcc.allreduce(x, codecs="int8")
    with raises(jcc.errors.UnknownNameError, "bcast", "'algoritm'", "'algorithm'"):
        jcc.bcast(x, algoritm="ring")
    with raises(jcc.errors.UnknownNameError, "psum", "'codecs'", "'codec'"):
        jax.vmap(lambda x: jcc.lax.psum(x, "i", codecs="int8"), axis_name="i")(x)


def test_update_refuses_a_state_of_other_gradients():
    optimizer = optim.allreduce_gradients(codec="onebit", error_feedback=True, axis_name="i")
    state = optimizer.init({"w": jnp.ones(3)})

    def update(x):
        return optimizer.update({"w": x, "b": x}, state)[0]

    with raises(
        jcc.errors.InvalidArgumentError,
        "allreduce_gradients",
        "residual",
        "'b'",
        "'w'",
        "init(params)",
        golden=False,
    ):
        jax.vmap(update, axis_name="i")(jnp.ones((2, 3)))


def test_error_feedback_needs_a_lossy_codec():
    for options in ({}, {"codec": "lossless"}, {"policy": jcc.optim.Rule("raw", pattern="*bias")}):
        with raises(jcc.errors.InvalidArgumentError, "error_feedback", "lossy"):
            jcc.optim.allreduce_gradients(error_feedback=True, **options)
    jcc.optim.allreduce_gradients(
        error_feedback=True, policy=jcc.optim.Rule("int8")
    )  # a single rule
